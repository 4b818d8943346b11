"""``slackwater drain`` and ``undrain``: taking one executor out of service while what it runs ends, and putting it
back."""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from services.local.commands.asked_stack import AskedStackOptions
from services.local.commands.parameters import JsonOption
from shared.errors import StackError
from shared.json_text import json_text
from shared.protocol.executors import Heartbeat
from shared.settings.command_options import with_option_groups
from shared.watch.stack_status import StackReport

ExecutorName = Annotated[str, typer.Argument(metavar="EXECUTOR", help="Its id, as slackwater status shows it.")]


@with_option_groups
def drain(
    *,
    executor_id: ExecutorName,
    wait: Annotated[bool, typer.Option(help="Return when it holds no request any more.")] = True,
    stack: AskedStackOptions,
    as_json: JsonOption = False,
) -> None:
    """Give an executor no new requests, online or offline, and wait until those that it has have ended.

    It stays so until slackwater undrain, or until it is started anew.
    """
    beat = asyncio.run(drained(stack, executor_id, wait, _tell))
    done = "is drained" if beat.is_drained else "takes no requests"
    print(json_text(_state(beat)) if as_json else f"{executor_id} {done}")


@with_option_groups
def undrain(executor_id: ExecutorName, stack: AskedStackOptions, as_json: JsonOption = False) -> None:
    """Let a drained executor take requests again."""
    beat = asyncio.run(_undrained(stack, executor_id))
    print(json_text(_state(beat)) if as_json else f"{executor_id} takes requests")


async def drained(
    options: AskedStackOptions, executor_id: str, wait: bool, tell: Callable[[Heartbeat], None]
) -> Heartbeat:
    """Returns its heartbeat when it holds nothing any more; without ``wait`` when it takes nothing any more. ``tell``
    gets what it answered, and then each heartbeat in which it holds another number of requests. Raises StackError,
    BusError and ApiError where there is no such executor, or it does not end as drained."""
    async with options.opened("drain") as stack:
        beat = await stack.set_draining(executor_id, True)
        tell(beat)
        while wait and not beat.is_drained:
            before, beat = beat, _next_beat(await stack.report(), beat)
            if beat.num_held != before.num_held:
                tell(beat)
        return beat


async def _undrained(options: AskedStackOptions, executor_id: str) -> Heartbeat:
    async with options.opened("undrain") as stack:
        return await stack.set_draining(executor_id, False)


def _next_beat(report: StackReport, before: Heartbeat) -> Heartbeat:
    executor_id = before.info.executor_id
    beat = next((each for each in report.status.executors if each.info.executor_id == executor_id), None)
    if beat is None:
        raise StackError(f"{executor_id} fell silent while {before.num_held} requests ran there")
    if beat.info.epoch != before.info.epoch:
        raise StackError(f"{executor_id} was started anew, and takes requests")
    if not beat.draining:
        raise StackError(f"{executor_id} was told to take requests again")
    return beat


def _tell(beat: Heartbeat) -> None:
    """On stderr, how much is left."""
    if beat.num_held:
        online, offline = beat.online_waiting + beat.online_running, beat.offline_waiting + beat.offline_running
        print(f"{beat.info.executor_id} still has {online} online and {offline} offline requests", file=sys.stderr)


def _state(beat: Heartbeat) -> dict[str, object]:
    return {
        "executor_id": beat.info.executor_id,
        "draining": beat.draining,
        "drained": beat.is_drained,
        "requests": beat.num_held,
    }
