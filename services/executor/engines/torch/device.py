"""Where a model runs: device, dtype, and memory as the engines want it there."""

import contextlib
import ctypes
import math
import mmap
import platform
import re
import sys
from pathlib import Path

import torch

from shared.errors import ConfigError
from shared.process.memory import available_memory_bytes

CPU_KV_BYTES = 1 << 30
CPU_KV_SHARE = 0.25  # of the memory that is free, where that is less
CUDA_KV_SHARE = 0.9  # of the memory that is free after loading
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

M_TRIM_THRESHOLD, KEPT_BYTES = -1, 512 << 20  # that may lie free at an arena's end
M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES = -3, 32 << 20  # of one tensor: the most that glibc takes


def choose_device(device: str) -> torch.device:
    """ "auto" is CUDA where there is one. Raises ConfigError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {device!r}: write auto, cpu, cuda or cuda:1") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported: write auto, cpu, cuda or cuda:1")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r}: torch sees no CUDA device here; write cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device {device!r}: torch sees {count} CUDA devices here; write cuda:{count - 1} or less")
    return chosen


def make_current(device: torch.device) -> None:
    """Of the calling thread: kernels are launched on its current GPU, wherever their tensors are."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def is_lost(device: torch.device) -> bool:
    """After an error: whether the device takes no work of this process any more, as CUDA after an access that was not
    allowed. Then each later call fails the same way."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def choose_dtype(dtype: str, device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    """ "auto" is float32 on CPU; on CUDA the checkpoint's own if it has 16 bits, else bfloat16. Raises ConfigError."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}: write auto, {', '.join(DTYPES)}")
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    return checkpoint if checkpoint in (torch.bfloat16, torch.float16) else torch.bfloat16


def kv_memory_bytes(device: torch.device) -> int:
    """What KV blocks may take when nobody says how many there should be."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_KV_SHARE)
    return min(CPU_KV_BYTES, int(available_memory_bytes() * CPU_KV_SHARE))


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, for the whole process. By default glibc hands the activations of a step
    back to the kernel as they are freed, and the next ones fault in again page by page, which costs a chunk of 512
    tokens a seventh of its time. Returns whether there is such a setting here."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """For what is large, and read at random: on the CPU in pages of 2 MiB, where the kernel has some, since decodes
    over long contexts then take a tenth less time. Raises OSError or RuntimeError without the memory."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape).zero_()


def device_name(device: torch.device, num_threads: int) -> str:
    """As in a profile key: "cpu-amd-epyc-2t", "cuda-nvidia-h200"."""
    if device.type == "cuda":
        return f"cuda-{_slug(torch.cuda.get_device_name(device))}"
    return f"cpu-{_slug(_cpu_model())}-{num_threads}t"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
