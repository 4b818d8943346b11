"""``slackwater status`` and ``slackwater top``."""

import asyncio
import contextlib
import sys
from typing import Annotated

import typer

from services.local.commands.parameters import BusOptions, JsonOption, show
from services.local.commands.status.status import read_status
from services.local.commands.status.status_table import print_status
from services.local.commands.status.top import run_top
from shared.settings.command_options import with_option_groups


@with_option_groups
def status(stack: BusOptions, as_json: JsonOption = False) -> None:
    """Show every process of a stack, its executors and its queues."""
    show(asyncio.run(read_status(stack)), as_json, print_status)


@with_option_groups
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, as where stdout is no terminal.")] = False,
    stack: BusOptions,
) -> None:
    """Watch a stack: load, step times, what online users get, offline throughput and batches. Ctrl-C leaves."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_top(stack, once or not sys.stdout.isatty()))
