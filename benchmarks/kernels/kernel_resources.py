"""What the Triton kernels take of an SM, without a GPU: ``python -m benchmarks.kernels.kernel_resources``.

The launchers run as in production, on a driver that compiles every specialization for a named architecture with the
ptxas of the Triton wheel and launches nothing. Registers and stack (where spilled registers go) are read from the
binary with cuobjdump. ``--json`` prints the same figures for a test to read.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import torch
import triton
import typer
from triton.backends.compiler import GPUTarget

from benchmarks.engine.batches import GREEDY
from benchmarks.harness.command import Results, benchmark, formatted
from kernels.gpu import attention, fused_attention, kv_write, reduce_splits, slot_copy
from kernels.gpu.batch import PagedBatch
from kernels.gpu.tiles import Gpu, fused_tile_shapes
from kernels.kv_layers import KVLayers
from kernels.slots import StepLayout
from shared.replica.engine import Sequence

SM_SHARED_KIB = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}  # by capability
CAPABILITIES = [80, 90]
SYSTEM_SHARED_BYTES = 1024  # that CUDA adds for itself to what a program takes
SM_REGISTERS = 65536
KERNELS = (
    attention.attention_kernel,
    fused_attention.fused_attention_kernel,
    reduce_splits.reduce_splits_kernel,
    kv_write.write_kv_kernel,
    slot_copy.copy_slots_kernel,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one compiled specialization of a kernel."""

    capability: int
    case: str
    kernel: str
    launch: str  # what it was first compiled for
    num_warps: int
    registers: int  # a thread
    stack_bytes: int  # a thread: spilled registers
    shared_bytes: int  # a program
    async_copies: int  # cp.async instructions: loads that the loop has in flight
    tensor_core_instructions: int
    wide_loads: int  # of 16 bytes a thread, straight to registers

    @property
    def programs_per_sm(self) -> int:
        """That registers and shared memory leave room for."""
        by_registers = SM_REGISTERS // (-(-self.registers // 8) * 8 * 32 * self.num_warps)
        by_shared = (SM_SHARED_KIB[self.capability] << 10) // (self.shared_bytes + SYSTEM_SHARED_BYTES)
        return min(by_registers, by_shared, 32)


def compile_only_driver(capability: int) -> SimpleNamespace:
    """Stands where Triton's CUDA driver does, and runs nothing."""
    return SimpleNamespace(
        utils=SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 30},
            load_binary=lambda name, binary, shared, device: (None, None, 0, 0, 1024),
        ),
        launcher_cls=lambda source, metadata: lambda *arguments: None,
        get_current_device=lambda: capability,  # Triton keeps one cache of compiled kernels a device
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
    )


def launch_all(
    capability: int, head_dim: int, group_size: int, dtype: torch.dtype, window: int | None, directed: bool
) -> Iterator[str]:
    """Every launcher once; what each launch was of, when it is over. Splits are of the contexts."""
    num_kv_heads, block_size = 8, 16
    kv_cache = torch.zeros(64, block_size, num_kv_heads, 2 * head_dim, dtype=dtype)
    tables = list(range(64))
    shared_bytes = (SM_SHARED_KIB[capability] << 10) - SYSTEM_SHARED_BYTES
    is_fused = fused_tile_shapes(group_size, head_dim, dtype, shared_bytes) is not None
    both = "a decode and a chunk"
    mixed = {
        both: ([1, 64], 1),
        f"{both}, splits of decodes": ([1, 256], 16),
        f"{both}, splits of both": ([1, 64], 132),
    }
    decodes = {"a decode": ([1], 1), "a decode, splits": ([1], 132)}
    for what, (num_new, sms) in (decodes | (mixed if is_fused else {}) | {"a chunk": ([64], 1)}).items():
        sequences = [Sequence("r", [0] * new, 1024 - new, tables, GREEDY, True, directed) for new in num_new]
        layout = StepLayout.of(sequences, 64, block_size)
        batch, _, slots = PagedBatch.build(layout, kv_cache.device, is_fused)
        batch.gpu = Gpu(sms, shared_bytes)
        query = torch.zeros(sum(num_new), num_kv_heads * group_size, head_dim, dtype=dtype)
        attention.attend(query, kv_cache, batch, head_dim**-0.5, window)
        yield what
    key = torch.zeros(len(slots), num_kv_heads, head_dim, dtype=dtype)
    kv_write.write_kv(key, key, kv_cache, slots)
    yield "KV of new tokens"
    layers = KVLayers.of([kv_cache])
    slot_copy.copy_slots(layers, slots, layers.new_buffer(len(slots)), to_buffer=True)
    yield "slots to a buffer"
    slot_copy.copy_slots(layers, slots, layers.new_buffer(len(slots)), to_buffer=False)
    yield "slots from a buffer"


def measure(capability: int, cases: list[tuple[int, int, torch.dtype, int | None, bool]]) -> list[Resources]:
    """Compile the kernels of ``cases`` (head_dim, query heads a KV head, dtype, window, direction)."""
    found = []
    triton.runtime.driver.set_active(compile_only_driver(capability))
    for head_dim, group_size, dtype, window, directed in cases:
        name = f"{str(dtype).removeprefix('torch.')}, head {head_dim}, group {group_size}"
        name += f", window {window}" * (window is not None) + ", direction" * directed
        before = _compiled_kernels(capability)
        for launch in launch_all(capability, head_dim, group_size, dtype, window, directed):
            after = _compiled_kernels(capability)
            new = [kernel for key, kernel in after.items() if key not in before]
            found += [_resources(capability, name, launch, kernel) for kernel in new]
            before = after
    return found


def _compiled_kernels(capability: int) -> dict[tuple[str, str], Any]:
    return {
        (function.__name__, key): kernel
        for function in KERNELS
        for key, kernel in function.device_caches[capability][0].items()
    }


def _resources(capability: int, case: str, launch: str, kernel: Any) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ptx = kernel.asm["ptx"]
    return Resources(
        capability,
        case,
        kernel.name,
        launch,
        kernel.metadata.num_warps,
        int(re.findall(r"REG:(\d+)", usage)[-1]),
        int(re.findall(r"STACK:(\d+)", usage)[-1]),
        kernel.metadata.shared,
        len(re.findall(r"cp\.async\.c[ag]", ptx)),
        len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async)", ptx)),
        len(re.findall(r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64", ptx)),
    )


CASES = [
    (64, 3, torch.bfloat16, None, True),
    (80, 1, torch.float16, None, True),
    (96, 1, torch.bfloat16, 2047, True),
    (128, 4, torch.bfloat16, None, False),
    (128, 4, torch.bfloat16, None, True),
    (128, 8, torch.float16, 4096, True),
    (256, 2, torch.bfloat16, None, True),
    (64, 3, torch.float32, None, True),
    (128, 4, torch.float32, None, True),
    (256, 2, torch.float32, None, True),
    (512, 8, torch.bfloat16, None, True),
]


@benchmark
def main(
    capability: Annotated[list[int], typer.Option(help=f"Of {sorted(SM_SHARED_KIB)}.")] = CAPABILITIES,
    case: Annotated[list[int] | None, typer.Option(help="By number; else all.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Of those; else all.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> Results:
    if triton.knobs.runtime.interpret:
        sys.exit("the interpreter compiles nothing: unset TRITON_INTERPRET")
    cases = [CASES[number] for number in case or range(len(CASES))]
    found = [resources for each in capability for resources in measure(each, cases)]
    found = [resources for resources in found if resources.kernel in (kernel or [resources.kernel])]
    if as_json:
        yield json.dumps([asdict(each) | {"programs_per_sm": each.programs_per_sm} for each in found])
        return
    for resources in found:
        yield {
            "compiled for": f"sm_{resources.capability}, {resources.case}",
            "kernel": resources.kernel,
            "launched for": resources.launch,
            **formatted("d", {"warps": resources.num_warps, "registers": resources.registers}),
            "stack bytes": str(resources.stack_bytes),
            **formatted(",", {"shared bytes": resources.shared_bytes, "programs an SM": resources.programs_per_sm}),
        }
