"""The line below ``slackwater up`` on a terminal: what a ready stack does."""

import asyncio
import contextlib

from services.local.commands.status.top_table import essentials
from services.local.stack.progress import Progress
from services.local.stack.stack_bus import bus_at
from shared.clock import SystemClock
from shared.errors import BusError, StackError
from shared.watch.follower import StackFollower
from shared.watch.stack_watch import StackWatch

REFRESH_S = 1.0


async def show_essentials(nats_url: str, progress: Progress) -> None:
    """Each second, until cancelled. Without a bus there is nothing to show, and nothing is lost."""
    watch, clock = StackWatch(), SystemClock()
    with contextlib.suppress(BusError, StackError):
        async with bus_at(nats_url, "supervisor-line") as bus, StackFollower.following(bus, watch, clock):
            while True:
                await asyncio.sleep(REFRESH_S)
                progress.step("serving", essentials(watch.view(clock.monotonic_s())))
