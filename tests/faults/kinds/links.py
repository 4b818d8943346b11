"""Links between a process and nats-server that are cut, one-way, slow, lossy, or break."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tests.faults.plan import Planned
from tests.faults.stack.hosts import DATA
from tests.faults.stack.link import CALM, Weather
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack


@dataclass(frozen=True)
class BadLink:
    """For a while it is one of these ways."""

    name: str
    share: float
    weathers: tuple[Weather, ...]

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.services

    async def run(self, stack: Stack, planned: Planned) -> str:
        link = stack.links[planned.target]
        weather = random.Random(planned.draw).choice(self.weathers)
        await link.set(weather)
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            await link.set(CALM)
        return f"{weather} for {planned.lasts_s:g} s"


class BrokenLink:
    """Its connection is reset."""

    name, share = "link broken", 0.7

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.services

    async def run(self, stack: Stack, planned: Planned) -> str:
        stack.links[planned.target].reset()
        return ""


class DataCut:
    """Between executors, by which they read each other's KV; to nats-server nothing is cut."""

    name, share = "data link cut", 1.0

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.executors if shape.has_hosts else ()

    async def run(self, stack: Stack, planned: Planned) -> str:
        assert stack.hosts is not None
        stack.hosts.cut(planned.target, DATA)
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            stack.hosts.mend(planned.target, DATA)
        return f"{planned.lasts_s:g} s"


BAD_LINKS = (
    BadLink("link cut", 1.5, (Weather(up=False, down=False),)),
    BadLink("link one-way", 1.0, (Weather(up=False), Weather(down=False))),
    BadLink("link slow", 0.7, (Weather(delay_s=0.02), Weather(delay_s=0.1), Weather(delay_s=0.4))),
    BadLink("link lossy", 0.7, (Weather(loss=0.02), Weather(loss=0.2))),
)
