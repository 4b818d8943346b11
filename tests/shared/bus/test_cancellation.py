"""A loop that checks for its cancellation ends, even where the await lost it."""

import asyncio

from shared.cancellation import check_cancelled


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
