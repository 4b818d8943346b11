"""``slackwater drain`` and ``undrain``: taking one executor out of service while what it runs ends, and putting it
back."""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from services.local.commands.parameters import BusOptions, JsonOption
from shared.bus import Bus
from shared.errors import NoResponderError, StackError
from shared.json_text import json_text
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat, SetDraining
from shared.settings.command_options import with_option_groups

SILENCE_S = 5.0  # an executor that has not beaten for so long is gone

ExecutorName = Annotated[str, typer.Argument(metavar="EXECUTOR", help="Its id, as slackwater status shows it.")]


@with_option_groups
def drain(
    *,
    executor_id: ExecutorName,
    wait: Annotated[bool, typer.Option(help="Return when it holds no request any more.")] = True,
    stack: BusOptions,
    as_json: JsonOption = False,
) -> None:
    """Give an executor no new requests, online or offline, and wait until those that it has have ended.

    It stays so until slackwater undrain, or until it is started anew.
    """
    beat = asyncio.run(drained(stack, executor_id, wait, _tell))
    done = "is drained" if beat.is_drained else "takes no requests"
    print(json_text(_state(beat)) if as_json else f"{executor_id} {done}")


@with_option_groups
def undrain(executor_id: ExecutorName, stack: BusOptions, as_json: JsonOption = False) -> None:
    """Let a drained executor take requests again."""
    beat = asyncio.run(_undrained(stack, executor_id))
    print(json_text(_state(beat)) if as_json else f"{executor_id} takes requests")


async def drained(stack: BusOptions, executor_id: str, wait: bool, tell: Callable[[Heartbeat], None]) -> Heartbeat:
    """Returns its heartbeat when it holds nothing any more; without ``wait`` when it takes nothing any more. ``tell``
    gets what it answered, and then each heartbeat in which it holds another number of requests. Raises StackError
    where there is no such executor, or it does not end as drained."""
    async with stack.bus("drain") as bus:
        beat = await _set_draining(bus, executor_id, True)
        tell(beat)
        beats: asyncio.Queue[Heartbeat] = asyncio.Queue()
        await bus.subscribe(subjects.heartbeat(executor_id), Heartbeat, beats.put)
        while wait and not beat.is_drained:
            before, beat = beat, await _next_beat(beats, beat)
            if beat.num_held != before.num_held:
                tell(beat)
        return beat


async def _undrained(stack: BusOptions, executor_id: str) -> Heartbeat:
    async with stack.bus("undrain") as bus:
        return await _set_draining(bus, executor_id, False)


async def _set_draining(bus: Bus, executor_id: str, draining: bool) -> Heartbeat:
    try:
        return await bus.request(subjects.drain(executor_id), SetDraining(draining), Heartbeat)
    except NoResponderError as error:
        bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        known = ", ".join(sorted(entry.key for entry in await bucket.entries())) or "none"
        raise StackError(f"no executor {executor_id} answers; registered: {known}") from error


async def _next_beat(beats: asyncio.Queue[Heartbeat], before: Heartbeat) -> Heartbeat:
    executor_id = before.info.executor_id
    try:
        beat = await asyncio.wait_for(beats.get(), SILENCE_S)
    except TimeoutError:
        raise StackError(f"{executor_id} fell silent while {before.num_held} requests ran there") from None
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
