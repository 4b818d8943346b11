"""Executors that join, are drained, and leave."""

from __future__ import annotations

import asyncio

from shared.errors import SlackwaterError
from shared.watch.stack_status import set_draining
from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack

JOINING = "joining"
STARTS_S = 40.0  # by which an executor is there, beside much else
AGAIN_S = 0.5


class Joined:
    """One more executor, which is drained after a while and leaves."""

    name, share = "executor joins", 0.6

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return (JOINING,) if shape.engine == "sim" else ()

    async def run(self, stack: Stack, planned: Planned) -> str:
        name = f"executor-more-{planned.number}"
        member = await stack.add_executor(name)
        member.start()
        try:
            await _joined(stack, name)
            await asyncio.sleep(planned.lasts_s)
            drained = await _drain(stack, name, True)
        finally:
            await member.stop("leaves")
            await stack.forget(name)
        return drained


class Drained:
    """Takes no requests for a while."""

    name, share = "executor drained", 0.6

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.executors

    async def run(self, stack: Stack, planned: Planned) -> str:
        done = await _drain(stack, planned.target, True)
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            undone = await _drain(stack, planned.target, False)
        return " ".join((done, undone))


async def _joined(stack: Stack, name: str) -> None:
    """Return when it takes requests, or has had its time to."""
    until_s = stack.now() + STARTS_S
    while await _drain(stack, name, False) and stack.now() < until_s:  # noqa: ASYNC110  # it is another process
        await asyncio.sleep(AGAIN_S)


async def _drain(stack: Stack, name: str, is_draining: bool) -> str:
    """As ``slackwater drain`` asks; one that does not hear it begins undrained. Empty where it has heard it."""
    try:
        async with stack.bus() as bus:
            await set_draining(bus, name, is_draining)
    except SlackwaterError as error:
        return f"not asked: {error}"
    return ""
