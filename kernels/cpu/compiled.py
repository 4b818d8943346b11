"""How kernels are compiled by Numba, and what they share."""

import functools
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numba import get_num_threads, njit

LOG2_E = math.log2(math.e)
EXP2 = tuple(np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7))  # of 2**x, x in [-0.5, 0.5]
OPTIONS: dict[str, Any] = {
    "parallel": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nnan", "ninf", "nsz", "arcp", "contract", "reassoc"},
}


def compiled(signature: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile at once for one signature, which takes seconds, but where a cache can be written, once on a machine."""

    def compile_it(function: Callable[..., None]) -> Callable[..., None]:
        kernel: Callable[..., None]
        _start_layer()
        constants = [cell.cell_contents for cell in function.__closure__ or ()]
        # its name in the cache, where two that shared one could be confused by two processes that write at a time
        function.__qualname__ = "_".join(map(str, (function.__qualname__, _version(), *constants)))
        try:
            kernel = njit(signature, cache=True, **OPTIONS)(function)
        except (RuntimeError, OSError):  # no folder, or no room in it
            kernel = njit(signature, **OPTIONS)(function)
        return kernel

    return compile_it


@functools.cache
def _version() -> str:
    """Of all that is compiled here. Numba itself only looks whether the file of a function is still the one whose
    code is in the cache, not at what the function calls in other files."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]


@functools.cache
def _start_layer() -> None:
    """In a thread that does nothing else. Numba's OpenMP layer lets the thread that starts it begin parallel regions
    within others; there each small product of torch's attention would start threads of its own, and a chunk of short
    prompts take 2.4 times as long."""
    starter = Thread(target=get_num_threads)
    starter.start()
    starter.join()


@njit(inline="always")
def exp2(x):
    """2**x of a float32 x of at most 0, to some units in the last place; nearly 0 below -126. Without a branch, so that
    loops over it become vector instructions."""
    x = max(x, np.float32(-126.0))
    whole = np.int32(x - np.float32(0.5))
    part = x - np.float32(whole)
    value = EXP2[6]
    value = value * part + EXP2[5]
    value = value * part + EXP2[4]
    value = value * part + EXP2[3]
    value = value * part + EXP2[2]
    value = value * part + EXP2[1]
    value = value * part + EXP2[0]
    return value * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)
