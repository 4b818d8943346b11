"""``slackwater drain`` and ``slackwater undrain``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from services.local.commands.parameters import DataDirOption, JsonOption, NatsOption
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.json_text import json_text

if TYPE_CHECKING:
    from shared.protocol.messages import Heartbeat

ExecutorName = Annotated[str, typer.Argument(metavar="EXECUTOR", help="Its id, as slackwater status shows it.")]


def drain(
    executor_id: ExecutorName,
    wait: Annotated[bool, typer.Option(help="Return when it holds no request any more.")] = True,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an executor no new requests, online or offline, and wait until those that it has have ended.

    It stays so until slackwater undrain, or until it is started anew.
    """
    from services.local.commands.drain import drain

    beat = asyncio.run(drain(data_dir, nats, executor_id, wait, _tell))
    if as_json:
        print(json_text(_state(beat)))
    else:
        print(f"{executor_id} is drained" if beat.is_drained else f"{executor_id} takes no requests")


def undrain(
    executor_id: ExecutorName,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a drained executor take requests again."""
    from services.local.commands.drain import undrain

    beat = asyncio.run(undrain(data_dir, nats, executor_id))
    print(json_text(_state(beat)) if as_json else f"{executor_id} takes requests")


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
