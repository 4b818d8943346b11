"""A task that is cancelled ends, even where what it awaits loses that."""

import asyncio

import pytest

from shared.bus.connection import failing_as
from shared.cancellation import check_cancelled, within
from shared.errors import BusError


async def test_a_cancellation_that_comes_with_the_result() -> None:
    results: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
    taken: list[int] = []

    async def loop() -> None:
        while True:
            check_cancelled()
            result = asyncio.get_running_loop().create_future()
            results.put_nowait(result)
            taken.append(await asyncio.wait_for(result, 60))

    task = asyncio.create_task(loop())
    (await results.get()).set_result(1)
    (await results.get()).set_result(2)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert taken[0] == 1


async def test_nothing_happens_to_a_task_that_was_not_cancelled() -> None:
    check_cancelled()
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        check_cancelled()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


@pytest.mark.parametrize("has_failed", [False, True])
async def test_an_operation_of_the_bus_keeps_a_cancellation_that_comes_with_its_result(has_failed: bool) -> None:
    """Whoever awaits it checks nothing, and is cancelled all the same."""
    result, seen = asyncio.get_running_loop().create_future(), list[object]()

    async def ask() -> None:
        try:
            with failing_as("ask"):
                seen.append(await asyncio.wait_for(result, 60))
        except BusError as error:
            seen.append(error)
        await asyncio.Event().wait()

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    if has_failed:
        result.set_exception(OSError("away"))
    else:
        result.set_result(1)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled() and not any(isinstance(each, BusError) for each in seen)


async def test_a_task_that_was_cancelled_may_still_use_the_bus() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with failing_as("sign off"):
                await asyncio.sleep(0)
            done.append("signed off")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled() and done == ["signed off"]


async def swallowing(number: int) -> None:
    """So many cancellations."""
    while number:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            number -= 1
    await asyncio.Event().wait()


async def test_what_takes_too_long_is_ended_however_often_it_goes_on() -> None:
    with pytest.raises(TimeoutError):
        await within(0.01, swallowing(3))
    task = asyncio.create_task(within(60, swallowing(3)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_one_that_is_closed_while_it_waits_waits_for_nothing_more() -> None:
    """As a coroutine is whose loop nobody runs any more, once it is collected."""
    waiting = within(60, swallowing(0))
    waiting.send(None)
    waiting.close()


async def test_within_its_time_it_is_what_it_is() -> None:
    async def seven() -> int:
        return 7

    async def refuse() -> None:
        raise OSError("away")

    assert await within(60, seven()) == 7
    with pytest.raises(OSError, match="away"):
        await within(60, refuse())
