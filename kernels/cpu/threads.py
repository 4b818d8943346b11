"""Numba beside torch: whether it is there, and on how many threads its kernels run."""

import functools
import importlib.util

import torch

GRAIN = 1 << 15  # numbers that are worth a thread, as torch has it


@functools.cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def use_threads(num_values: int) -> int:
    """For the compiled kernel that the calling thread runs next over so many numbers: no more threads than torch
    has, and no more than they are worth. Returns how many."""
    import numba

    num_threads: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS, max(1, num_values // GRAIN))
    numba.set_num_threads(num_threads)
    return num_threads
