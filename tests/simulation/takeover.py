"""Time, randomness and garbage collection of the whole interpreter, for as long as a run lasts."""

import asyncio
import gc
import inspect
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy.random  # noqa: F401 (it draws random bytes when it is imported)
from opentelemetry.sdk import resources
from starlette import datastructures

from tests.simulation.loop import VirtualLoop
from tests.simulation.process import CURRENT, Process

START_UNIX_S = 1_700_000_000.0  # what the clock of the day shows when a run begins
HOST = "simulated"


@contextmanager
def taken_over(loop: VirtualLoop, seed: str) -> Iterator[None]:
    """Every clock is the loop's, every random byte comes of the seed, and garbage is collected when the loop says."""
    entropy = random.Random(f"{seed}:entropy").randbytes
    real_pid = os.getpid()

    def unix_s() -> float:
        return START_UNIX_S + loop.time()

    def pid() -> int:
        process = CURRENT.get(None)
        return real_pid if process is None else process.pid

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", unix_s),
        (time, "time_ns", lambda: int(unix_s() * 1e9)),
        (time, "monotonic", loop.time),
        (time, "monotonic_ns", lambda: int(loop.time() * 1e9)),
        (time, "perf_counter", loop.time),
        (time, "perf_counter_ns", lambda: int(loop.time() * 1e9)),
        (os, "urandom", entropy),
        (os, "getpid", pid),
        (random, "_urandom", entropy),
        (socket, "gethostname", lambda: HOST),
        (resources, "get_aggregated_resources", lambda detectors, initial, *_: initial),  # it asks in threads
        (datastructures, "run_in_threadpool", asyncio.to_thread),  # of uploads; anyio has threads of its own
    ]
    state = random.getstate()
    with ExitStack() as stack:
        for owner, name, instead in replaced:
            stack.enter_context(patch.object(owner, name, instead))
        random.seed(f"{seed}:random")
        stack.callback(random.setstate, state)
        stack.enter_context(collected_by(loop))
        yield


@contextmanager
def collected_by(loop: VirtualLoop) -> Iterator[None]:
    """What is there before the run stays, garbage too: looking through it takes longer than most runs."""
    gc.freeze()
    gc.disable()
    loop.on_collect = lambda: _collect(loop)
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()  # the loop was there before: what hangs together with what is frozen is never collected


def _collect(loop: VirtualLoop) -> None:
    """What coroutines of killed processes do when they are closed nobody sees, a killed process did not do it: neither
    do tasks that they make then."""
    closing = Process(loop, "closing", 0, lambda process, status: None)
    tell = sys.unraisablehook

    def tell_others(unraisable: Any) -> None:
        if not inspect.iscoroutine(unraisable.object):
            tell(unraisable)

    with patch.object(sys, "unraisablehook", tell_others):
        closing.call(gc.collect)
        closing.kill()
