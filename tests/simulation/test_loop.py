"""The loop's time, and whose callbacks it runs."""

import asyncio
import gc
import random
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.loop import VirtualLoop
from tests.simulation.process import Process
from tests.simulation.run import in_virtual_time


def _run(main: Callable[[], Coroutine[Any, Any, Any]], seed: str = "1") -> Any:
    return in_virtual_time(seed, main)[0]


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 24 * 3600.0)
        return _loop().time()

    assert _run(main) == 365 * 24 * 3600.0


def test_only_coroutines_are_collected_without_a_word() -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("not closed")

    async def never_ended() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("closed")

    async def main() -> None:
        coroutine = never_ended()
        coroutine.send(None)
        broken = Broken()
        circles: list[Any] = [coroutine, broken]
        circles.append(circles)
        del coroutine, broken, circles
        _loop().on_collect()

    heard: list[str] = []
    with patch.object(sys, "unraisablehook", lambda unraisable: heard.append(str(unraisable.exc_value))):
        _run(main)
    assert heard == ["not closed"]


def test_nothing_of_a_run_stays() -> None:
    """Not even where it was killed in the midst of something."""

    async def main() -> weakref.ref[VirtualLoop]:
        _process(lambda: _ticking([]))
        await asyncio.sleep(2.5)
        return weakref.ref(_loop())

    loop = _run(main)
    gc.collect()
    assert loop() is None


def test_what_would_run_in_a_thread_takes_a_moment() -> None:
    async def main() -> tuple[int, bool]:
        found = await asyncio.to_thread(lambda: 7)
        return found, _loop().time() > 0.0

    assert _run(main) == (7, True)


def test_the_same_seed_draws_the_same() -> None:
    async def main() -> tuple[float, int]:
        import secrets
        import uuid

        return random.random(), hash(uuid.uuid4().hex + secrets.token_hex(4))

    assert _run(main, "a") == _run(main, "a")
    assert _run(main, "a") != _run(main, "b")


async def _ticking(ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        ticks.append(_loop().time())


def _process(main: Callable[[], Coroutine[Any, Any, None]]) -> tuple[Process, list[int]]:
    ended: list[int] = []
    process = Process(_loop(), "p", 1, lambda _, status: ended.append(status))
    process.start(main)
    return process, ended


def test_a_stopped_process_stands_still_and_goes_on() -> None:
    async def main() -> tuple[list[float], list[float]]:
        theirs: list[float] = []
        mine: list[float] = []
        process, _ = _process(lambda: _ticking(theirs))
        others = asyncio.create_task(_ticking(mine))
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(3.0)
        process.resume()
        await asyncio.sleep(1.2)
        others.cancel()
        return theirs, mine

    assert _run(main) == ([1.0, 2.0, 5.5, 6.5], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_nobody_sees_what_a_killed_process_cleans_up() -> None:
    async def main() -> tuple[list[str], list[int]]:
        seen: list[str] = []
        is_cut = False

        def cut() -> None:
            nonlocal is_cut
            is_cut = True

        async def work() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                seen.append("cut before" if is_cut else "whole")
                await asyncio.sleep(1.0)
                seen.append("never")

        process, ended = _process(work)
        process.on_death.append(cut)
        await asyncio.sleep(1.0)
        _loop().call_soon(process.kill)
        await asyncio.sleep(10.0)
        return seen, ended

    assert _run(main) == (["cut before"], [])


def test_what_is_collected_of_a_killed_process_is_no_error_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                try:
                    await asyncio.sleep(1.0)
                finally:
                    await asyncio.sleep(1.0)  # also where the coroutine is closed

        process, _ = _process(work)
        await asyncio.sleep(1.0)
        _loop().call_soon(process.kill)
        await asyncio.sleep(10.0)

    with patch.object(sys, "unraisablehook", lambda _: None):
        _run(main)
        gc.collect()
    assert caplog.text == ""


def test_nor_is_a_task_that_it_makes_then() -> None:
    async def main() -> list[str]:
        async def fail() -> None:
            raise ValueError("nobody asks")

        async def never_ended() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.get_running_loop().create_task(fail())

        async def leave() -> None:
            coroutine = never_ended()
            coroutine.send(None)
            circle: list[Any] = [coroutine]
            circle.append(circle)

        process, _ = _process(leave)
        await asyncio.sleep(1.0)
        _loop().call_soon(process.kill)
        await asyncio.sleep(1.0)
        for _ in range(2):
            _loop().call_soon(_loop().on_collect)
            await asyncio.sleep(1.0)
        return _loop().unseen_errors

    assert _run(main) == []


def test_a_process_that_ends_says_how() -> None:
    async def main() -> list[int]:
        async def fails() -> None:
            raise ValueError("unforeseen")

        async def returns() -> None:
            return

        _, failed = _process(fails)
        _, well = _process(returns)
        await asyncio.sleep(0.1)
        return failed + well

    assert _run(main) == [1, 0]
