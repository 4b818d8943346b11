"""Knobs: the intervals and times by which services notice things, other ones in each run, as FoundationDB draws them.

A run with slower ones spends less on its quiet hours; one with faster ones sees other things happen at once.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from tests.checker.violation import Limits

IDLE_PAUSE_S = 5.0  # of a stream that has all to itself: no knob makes it wait, and a step takes half a second at most
IDLE_BATCH_S = 30.0  # of twenty lines
DEFAULTS_SHARE = 0.25  # of runs, in which all is as the product has it


@dataclass(frozen=True, slots=True)
class Knob:
    """Constants of the services that belong together, as module.NAME: in a run each is so many ``times`` what it is,
    which are here with how often they are drawn beside each other. ``notices_s``: in which something is noticed by them
    alone, as they are; 0 where nobody waits for that."""

    constants: tuple[str, ...]
    times: Mapping[float, int]
    notices_s: float = 0.0


HEARTBEAT = "heartbeat"
KNOBS = {
    HEARTBEAT: Knob(
        (
            "services.executor.service.HEARTBEAT_S",
            "services.executor.handover.peers.SILENCE_S",
            "services.gateway.live.registry.HEARTBEAT_TIMEOUT_S",
            "services.offline_queue.executor_desk.SILENCE_S",
            "services.offline_queue.executor_desk.LOOK_S",
            "services.offline_queue.hearing.STOOD_STILL_S",
            "services.profiler.sweep.sweep.SILENCE_S",
            "shared.watch.follower.FIRST_S",
            "shared.watch.stack_watch.GONE_S",
        ),
        {0.5: 1, 1.0: 1, 3.0: 4, 5.0: 4},
        5.0,
    ),
    "lease": Knob(
        (
            "shared.bus.lease.RENEW_S",
            "shared.bus.lease.ANSWERED_S",
            "shared.bus.lease.VALID_S",
            "shared.bus.lease.EXPIRY_S",
            "shared.bus.lease.LOOK_S",
        ),
        {0.5: 1, 1.0: 1, 2.0: 4, 4.0: 4},
        10.0,
    ),
    "pull": Knob(
        (
            "shared.bus.pulls.FETCH_WAIT_S",
            "shared.bus.pulls.BEAT_S",
            "shared.bus.pulls.KEPT_S",
            "shared.bus.streams.KEPT_S",
        ),
        {0.4: 1, 1.0: 1, 2.0: 2, 4.0: 6},
        6.0,
    ),
    "ping": Knob(("shared.bus.connection.PING_S",), {0.5: 1, 1.0: 1, 1.5: 2}, 60.0),
    "probe": Knob(
        ("shared.watch.probe.EXECUTOR_INTERVAL_S", "shared.watch.probe.GATEWAY_INTERVAL_S"),
        {0.5: 1, 1.0: 1, 4.0: 4},
        8.0,
    ),
    "flex": Knob(
        (
            "shared.protocol.offline.flex.HOLD_PERIOD_S",
            "services.gateway.live.flex_tracker.HOLD_PERIOD_S",
            "services.offline_queue.flex_desk.HOLD_PERIOD_S",
            "services.offline_queue.flex_desk.SILENCE_S",
        ),
        {0.5: 1, 1.0: 1, 3.0: 4},
        6.0,
    ),
    "handover": Knob(("services.executor.handover.desk.TICK_S",), {0.5: 1, 1.0: 1, 4.0: 2}, 1.0),
    "progress": Knob(("services.offline_queue.batches.life.PROGRESS_S",), {0.2: 1, 1.0: 1, 8.0: 1}, 0.25),
    "usage": Knob(
        ("shared.watch.usage_ledger.PERIOD_S", "services.offline_queue.order_memory.PERIOD_S"), {0.2: 1, 1.0: 1, 4.0: 4}
    ),
    "report": Knob(
        (
            "services.gateway.dashboard.hub.PERIOD_S",
            "services.gateway.dashboard.hub.UNSEEN_PERIOD_S",
            "services.gateway.bus_lag.PERIOD_S",
            "services.gateway.live.online_reporter.PERIOD_S",
        ),
        {1.0: 1, 3.0: 2, 10.0: 4},
    ),
    "sweep": Knob(
        (
            "services.offline_queue.batches.file_sweep.RECHECK_S",
            "services.offline_queue.batches.file_sweep.SWEEP_PERIOD_S",
            "services.offline_queue.batches.life.RECHECK_S",
            "services.offline_queue.batches.lost_batches.SWEEP_PERIOD_S",
            "services.offline_queue.copies.PERIOD_S",
            "services.offline_queue.registration_sweep.PERIOD_S",
        ),
        {0.1: 1, 0.3: 1, 1.0: 2},
    ),
}


def draw_knobs(rng: random.Random) -> dict[str, float]:
    """How many times as long what belongs to each is."""
    return {name: rng.choices([*knob.times], [*knob.times.values()])[0] for name, knob in KNOBS.items()}


@contextmanager
def turned(knobs: Mapping[str, float]) -> Iterator[None]:
    """So for as long as it lasts; what is not named is as it is."""
    with ExitStack() as stack:
        for name, times in knobs.items():
            for constant in KNOBS[name].constants:
                module, _, attribute = constant.rpartition(".")
                owner = importlib.import_module(module)
                stack.enter_context(patch.object(owner, attribute, getattr(owner, attribute) * times))
        yield


def later_s(knobs: Mapping[str, float]) -> float:
    """By how much later than with all knobs as they are something may be noticed that each of them hides in turn."""
    return sum(max(0.0, times - 1.0) * KNOBS[name].notices_s for name, times in knobs.items())


def limits_of(knobs: Mapping[str, float]) -> Limits:
    """What the checker lets pass. An answer may have to wait for what is noticed late twice. Computing takes no
    time."""
    usual, later = Limits(), later_s(knobs)
    return Limits(
        stream_s=usual.stream_s + 2.0 * later,
        idle_pause_s=IDLE_PAUSE_S,
        idle_batch_s=IDLE_BATCH_S,
        key_settles_s=usual.key_settles_s + later,
        gone_s=usual.gone_s + later,
        beats_s=usual.beats_s * max(1.0, knobs.get(HEARTBEAT, 1.0)),
        late_s=0.0,
    )
