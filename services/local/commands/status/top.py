"""``slackwater top``: a stack on a full screen, drawn anew each second."""

import asyncio
import contextlib
import sys
import time
from math import inf
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from services.local.commands.asked_stack import AskedStack, AskedStackOptions
from services.local.commands.output import stdout_console
from services.local.commands.parameters import JsonOption, show
from services.local.commands.status.top_table import essentials, screen
from services.local.stack.data_dir import bus_at
from services.local.stack.progress import Progress
from shared.bus.address import BusAddress
from shared.clock import SystemClock
from shared.errors import ApiError, BusError, StackError
from shared.protocol.services import is_well
from shared.settings.command_options import with_option_groups
from shared.watch.follower import StackFollower
from shared.watch.stack_status import StackReport
from shared.watch.stack_watch import StackWatch

REFRESH_S = 1.0
ONCE_HELP = (
    "Print one frame, as where stdout is no terminal: of seconds on the bus, with --url of a gateway's last minute."
)


@with_option_groups
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help=ONCE_HELP)] = False,
    stack: AskedStackOptions,
    as_json: JsonOption = False,
) -> None:
    """Watch a stack: load, step times, what online users get, offline throughput and batches. Ctrl-C leaves."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_top(stack, once or as_json or not sys.stdout.isatty(), as_json))


async def run_top(options: AskedStackOptions, once: bool, as_json: bool = False) -> None:
    """Draw until interrupted or until the stack ends. Raises StackError, BusError and ApiError where there is none."""
    async with options.opened("top", num_beats=2) as stack:
        report = await stack.report()
        if once:
            show(report, as_json, lambda report: stdout_console().print(frame(report, stack.heard_s)))
            return
        with Live(frame(report, stack.heard_s), console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                report, missing = await _next(stack, report)
                live.update(frame(report, stack.heard_s, missing), refresh=True)


def frame(report: StackReport, heard_s: float = inf, missing: str = "") -> RenderableType:
    """The screen. ``heard_s``: for how long the stack has been listened to; ``missing``: why it is an old one."""
    status = report.status
    unwell = [f"{each.name}: {each.health}" for each in status.processes if not is_well(each.name, each.health)]
    where = f"{status.url}  {status.model}" if status.url else "slackwater"
    return screen(f"{where}  {time.strftime('%H:%M:%S')}", [missing] if missing else unwell, report, heard_s)


async def _next(stack: AskedStack, before: StackReport) -> tuple[StackReport, str]:
    """A refresh later, the next report; the one before, and why, while nobody answers."""
    resting = asyncio.create_task(asyncio.sleep(REFRESH_S))
    try:
        return await stack.report(), ""
    except (ApiError, BusError) as error:  # it is being started again
        return before, str(error)
    finally:
        await resting


async def show_essentials(address: BusAddress, progress: Progress) -> None:
    """The line below ``slackwater up`` on a terminal: each second, until cancelled. Without a bus there is nothing to
    show, and nothing is lost."""
    watch, clock = StackWatch(), SystemClock()
    with contextlib.suppress(BusError, StackError):
        async with bus_at(address, "supervisor-line") as bus, StackFollower.following(bus, watch, clock):
            while True:
                await asyncio.sleep(REFRESH_S)
                progress.step("serving", essentials(watch.view(clock.monotonic_s())))
