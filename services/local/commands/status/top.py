"""``slackwater top``: a stack on a full screen, drawn anew each second."""

import asyncio
import contextlib
import sys
import time
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from services.local.commands.parameters import BusOptions
from services.local.commands.status.status import process_statuses, queue_figures, slo_statuses
from services.local.commands.status.top_table import essentials, screen
from services.local.stack.data_dir import StackFile, bus_at, stack_on
from services.local.stack.progress import Progress
from services.local.stack.readiness import PROFILER, ping_all
from shared.bus import Bus
from shared.clock import Clock, SystemClock
from shared.errors import BusError, StackError
from shared.settings.command_options import with_option_groups
from shared.watch.follower import StackFollower
from shared.watch.stack_watch import StackWatch

REFRESH_S = 1.0
ONCE_WIDTH = 160  # of a frame that goes to no terminal


@with_option_groups
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, as where stdout is no terminal.")] = False,
    stack: BusOptions,
) -> None:
    """Watch a stack: load, step times, what online users get, offline throughput and batches. Ctrl-C leaves."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_top(stack, once or not sys.stdout.isatty()))


async def run_top(options: BusOptions, once: bool) -> None:
    """Draw until interrupted or until the stack ends. Raises StackError where there is none."""
    stack, url = stack_on(options.data_dir, options.nats)
    watch, clock = StackWatch(), SystemClock()
    async with bus_at(url, "top") as bus, StackFollower.following(bus, watch, clock) as follower:
        await follower.wait_for_rates()
        if once:
            console = Console()
            console.width = max(console.width, ONCE_WIDTH)
            console.print(await frame(bus, stack, watch, clock))
            return
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                stack, _ = stack_on(options.data_dir, options.nats)
                live.update(await frame(bus, stack, watch, clock), refresh=True)
                await asyncio.sleep(REFRESH_S)


async def frame(bus: Bus, stack: StackFile | None, watch: StackWatch, clock: Clock) -> RenderableType:
    """The screen as it is now. Raises StackError where there is no stack any more."""
    try:
        answers = await ping_all(bus)
        slos = await slo_statuses(bus) if PROFILER in answers else []
    except BusError as error:  # it is being started again
        answers, slos, silent = {}, [], [f"the bus does not answer: {error}"]
    else:
        silent = []
    if not answers and stack is None:
        raise StackError("no service answers on this bus")
    view = watch.view(clock.monotonic_s())
    beats = [executor.beat for executor in view.executors]
    unwell = [f"{each.name}: {each.health}" for each in process_statuses(answers, stack) if each.health != "ok"]
    where = f"{stack.http_url}  {stack.model}" if stack else "slackwater"
    return screen(f"{where}  {time.strftime('%H:%M:%S')}", silent or unwell, view, queue_figures(beats, answers), slos)


async def show_essentials(nats_url: str, progress: Progress) -> None:
    """The line below ``slackwater up`` on a terminal: each second, until cancelled. Without a bus there is nothing to
    show, and nothing is lost."""
    watch, clock = StackWatch(), SystemClock()
    with contextlib.suppress(BusError, StackError):
        async with bus_at(nats_url, "supervisor-line") as bus, StackFollower.following(bus, watch, clock):
            while True:
                await asyncio.sleep(REFRESH_S)
                progress.step("serving", essentials(watch.view(clock.monotonic_s())))
