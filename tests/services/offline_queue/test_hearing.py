"""Whose silence means something: real processes, of which some stand still."""

import signal
import time
from collections.abc import Iterator

import pytest

from services.offline_queue.executor_desk import SILENCE_S
from services.offline_queue.hearing import STOOD_STILL_S, Hearing
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until
from tests.services.offline_queue.batch_desk import ManualClock

PRESET = ("--preset", "sarathi++")
NUM_LINES = 8


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    """Its executor runs a batch that does not end by itself."""
    with GatewayRig(tmp_path_factory.mktemp("stack")) as made:
        made.start_offline_queue(*PRESET)
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "4")
        made.start_gateway()
        made.wait_ready()
        made.submit_batch([{"model": MODEL, "prompt": "Once", "max_tokens": 7000, "ignore_eos": True}] * NUM_LINES)
        wait_until(lambda: made.metric("slackwater_executor_offline_running") == NUM_LINES, made.logs)
        yield made


def silences(rig: GatewayRig) -> int:
    return sum(event["event"] == "executor is silent" for event in rig.log_events("offline-queue"))


@pytest.mark.parametrize("name", ["offline-queue", "nats"])
def test_what_runs_goes_on_where_nobody_could_be_heard(rig: GatewayRig, name: str) -> None:
    """For longer than an executor may be silent, and then for as long again."""
    before, preemptions = silences(rig), rig.metric("slackwater_executor_preemptions_total")
    rig.pause(name)
    time.sleep(SILENCE_S + 1.5)
    rig.signal(name, signal.SIGCONT)
    time.sleep(SILENCE_S + 1.5)
    assert silences(rig) == before
    assert rig.metric("slackwater_executor_offline_running") == NUM_LINES
    assert rig.metric("slackwater_executor_preemptions_total") == preemptions


def test_an_executor_that_stands_still_is_silent(rig: GatewayRig) -> None:
    before = silences(rig)
    rig.pause("executor-0")
    wait_until(lambda: silences(rig) == before + 1, rig.logs)
    rig.signal("executor-0", signal.SIGCONT)


def test_everybody_has_the_whole_time_again_once_something_can_be_heard() -> None:
    clock, answers = ManualClock(), [True]
    hearing, heard_s = Hearing(lambda: answers[0], clock), clock.now_s
    clock.now_s += STOOD_STILL_S
    assert hearing.silent_s(heard_s) == STOOD_STILL_S
    clock.now_s += STOOD_STILL_S + 0.1
    assert hearing.silent_s(heard_s) == 0.0, "this process stood still"
    clock.now_s += 1.0
    assert hearing.silent_s(heard_s) == 1.0 and hearing.silent_s(clock.now_s) == 0.0
    answers[0] = False
    assert hearing.silent_s(heard_s) == 0.0, "the bus was away"
    answers[0] = True
    clock.now_s += 2.0
    assert hearing.silent_s(heard_s) == 2.0
