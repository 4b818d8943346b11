"""After the faults: wait until all is well again, and look at what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from shared.bus import Bus
from shared.errors import SlackwaterError
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.services import ServiceStatus
from shared.watch.stack_status import set_draining
from tests.checker.violation import Limits
from tests.faults.load.client import NO_TLS, Clients
from tests.faults.stack.stack import Stack

WELL_S = 180.0  # until which it has to be
LOOK_S = 0.5
LINES_OBJECT = ".lines"
CONSUMERS_EACH = 2  # of a stream, that a process may have
UNDER_WAY = (
    "live_requests",
    "waiting_requests",
    "flex_requests",
    "waiting",
    "running",
    "flex",
    "batches",
)  # by details


async def become_well(stack: Stack) -> dict[str, int]:
    """Every process answers and says that it is well, every gateway is ready, every executor takes requests. What is
    still missing after ``WELL_S``, each 1; empty where nothing is."""
    async with stack.bus() as bus:
        await _undrain(stack, bus)
        missing: dict[str, int] = {}
        until_s = stack.now() + WELL_S
        while stack.now() < until_s:
            missing = await _told(lambda: _missing(stack, bus))
            if not missing:
                break
            await asyncio.sleep(LOOK_S)
        return missing


async def left_over(stack: Stack, clients: Clients, limits: Limits) -> dict[str, int]:
    """What is there that nobody needs, counted, once it has had time to go."""
    async with stack.bus() as bus:
        counts: dict[str, int] = {}
        until_s = stack.now() + limits.gone_s
        while stack.now() < until_s:
            counts = await _told(lambda: _counts(stack, bus, clients, limits.beats_s))
            if not any(counts.values()):
                break
            await asyncio.sleep(LOOK_S)
        return counts


async def _told(look: Callable[[], Awaitable[dict[str, int]]]) -> dict[str, int]:
    try:
        return await look()
    except (SlackwaterError, httpx.HTTPError) as error:
        return {f"nobody answers: {error!r}": 1}


async def _undrain(stack: Stack, bus: Bus) -> None:
    """Those whose order to be drained no longer was not heard."""
    for name in stack.shape.executors:
        try:
            await set_draining(bus, name, False)
        except SlackwaterError:
            continue  # it starts again, undrained


async def _missing(stack: Stack, bus: Bus) -> dict[str, int]:
    answers = await bus.gather(subjects.PING, {}, ServiceStatus, 1.0)
    well = {each.pid for each in answers if each.health == "ok" or each.health.startswith("waits: pid")}
    ill = [f"{name} is not well" for name in stack.shape.services if stack.members[name].pid not in well]
    ill += [f"{name} has not ended" for name in stack.shape.names if stack.members[name].is_ending()]
    for name, url in stack.urls.items():
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, timeout=5.0) as client:
            if (await client.get(f"{url}/ready")).status_code != httpx.codes.OK:
                ill.append(f"{name} is not ready")
    return dict.fromkeys(ill, 1)


async def _counts(stack: Stack, bus: Bus, clients: Clients, beats_s: float) -> dict[str, int]:
    beats = await _beats(bus, beats_s)
    silent = {name: 1 for name in stack.shape.executors if name not in beats}
    counts = {f"no heartbeat of {name}": count for name, count in silent.items()}
    for name, beat in sorted(beats.items()):
        counts[f"online_running of {name}"] = beat.online_running + beat.online_waiting
        counts[f"offline_running of {name}"] = beat.offline_running + beat.offline_waiting
        counts[f"draining of {name}"] = int(beat.draining and name in stack.shape.executors)
    answers = await bus.gather(subjects.PING, {}, ServiceStatus, 1.0)
    sizes = await bus.sizes()
    for stream in (subjects.REQUESTS_STREAM, subjects.RESULTS_STREAM):
        counts[f"messages of {stream}"] = sizes[stream].messages
    for stream, size in sizes.items():
        counts[f"consumers of {stream}"] = max(0, size.consumers - CONSUMERS_EACH * len(answers))
    for answer in answers:
        for name in UNDER_WAY:
            counts[f"{name} of {answer.name}, pid {answer.pid}"] = int(answer.details.get(name) or 0)
    predictors = [answer for answer in answers if answer.name == "predictor"]
    counts["predictors without a latency model"] = sum(answer.details.get("models") == 0 for answer in predictors)
    objects = await (await bus.objects()).all()
    counts["objects of lines"] = sum(name.endswith(LINES_OBJECT) for name in objects)
    counts["batches that have not ended"] = await _unended(clients)
    return counts


async def _beats(bus: Bus, within_s: float) -> dict[str, Heartbeat]:
    """The last of each executor in a while."""
    beats: dict[str, Heartbeat] = {}

    async def on_beat(beat: Heartbeat) -> None:
        beats[beat.info.executor_id] = beat

    listening = await bus.subscribe(subjects.HEARTBEATS, Heartbeat, on_beat)
    await asyncio.sleep(within_s)
    await listening.stop()
    return beats


async def _unended(clients: Clients) -> int:
    """Those as well whose creation nobody answered."""
    answer = await clients.ask("GET", "/v1/batches", params={"limit": 100})
    if answer is None or answer.status_code != httpx.codes.OK:
        return 1
    over = ("completed", "failed", "expired", "cancelled")
    return sum(batch["status"] not in over for batch in answer.json()["data"])
