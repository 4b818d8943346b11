"""What a pace remembers of the steps before, against one who looks through all of them."""

import math
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.credit import NO_SHARE, Credit, OnlineShare
from shared.scheduling.packing.gating import WINDOW_STEPS
from shared.scheduling.packing.pace import BASE_BATCH_SIZE, NEWEST_STEP_WEIGHT, PROBE_STEPS, Pace
from shared.scheduling.request import OFFLINE, ONLINE
from shared.scheduling.schedule import Schedule, ScheduledRequest

ON, OFF = ScheduledRequest("on", ONLINE, 1), ScheduledRequest("off", OFFLINE, 1)
SHARE = OnlineShare(2, 10.0, 0.25)


def schedule_of(
    num_online: int, num_offline: int, num_lost: int = 0, hits: bool = False, share: OnlineShare = NO_SHARE
) -> Schedule:
    entries = [ON] * num_online + [OFF] * num_offline
    return Schedule(entries, ["lost"] * num_lost, 12.0, hit_time_limit=hits, share=share)


counts = st.integers(0, 2)
schedules = st.builds(schedule_of, counts, counts, counts, st.booleans(), st.sampled_from([NO_SHARE, SHARE]))


@given(st.lists(schedules, max_size=20), st.integers(1, 1000))
def test_what_is_remembered_is_what_all_steps_say(steps: list[Schedule], max_num_seqs: int) -> None:
    pace, batch_size, credit = Pace(), BASE_BATCH_SIZE, Credit()
    for count, step in enumerate(steps, start=1):
        pace = pace.after(step, max_num_seqs, len(step.preempted))
        batch_size = min(BASE_BATCH_SIZE if step.hit_time_limit else 2 * batch_size, max_num_seqs)
        credit = credit.started(SHARE, 12.0) if step.share is SHARE else credit
        kinds = [[entry.kind for entry in each.entries] for each in steps[:count] if each.entries]
        assert pace.batch_size == batch_size and pace.credit == credit and pace.seed == count
        assert pace.last_kind is (min(kinds[-1]) if kinds else None)
        assert pace.num_online_only == len(list(takewhile(lambda each: OFFLINE not in each, reversed(kinds))))
        weights = [(1.0 - 1.0 / WINDOW_STEPS) ** age for age in range(count)]
        aged = list(zip(weights, reversed(steps[:count]), strict=True))
        assert pace.evictions.lost == pytest.approx(sum(weight * len(each.preempted) for weight, each in aged))
        assert pace.evictions.runs == pytest.approx(sum(weight * each.entries.count(OFF) for weight, each in aged))


def test_an_offline_request_is_to_be_let_in_once_so_many_steps_had_none() -> None:
    pace = Pace()
    for _ in range(PROBE_STEPS):
        assert not pace.probes
        pace = pace.after(schedule_of(1, 0), 64)
    assert pace.probes
    assert pace.after(schedule_of(0, 0), 64).probes and not pace.after(schedule_of(1, 1), 64).probes


@given(st.lists(st.integers(1, 10_000).map(lambda sixteenths: sixteenths / 16), min_size=1, max_size=20))
def test_the_usual_step_is_a_moving_average_that_begins_with_the_first(times_ms: list[float]) -> None:
    pace = Pace()
    for latency_ms in times_ms:
        pace = pace.measured(latency_ms)
    kept = [NEWEST_STEP_WEIGHT * (1.0 - NEWEST_STEP_WEIGHT) ** age for age in range(len(times_ms))]
    newest_first = list(zip(kept, reversed(times_ms), strict=True))
    expected_ms = sum(weight * latency_ms for weight, latency_ms in newest_first) + (1.0 - sum(kept)) * times_ms[0]
    assert pace.mean_step_ms == pytest.approx(expected_ms)
    assert pace.at(77.0).now_ms == 77.0 and pace.at(77.0).mean_step_ms == pace.mean_step_ms


@given(st.lists(st.sampled_from(["offline", "online", "tolerated", "interrupted"]), max_size=20))
def test_after_interruptions_steps_grow_again_by_those_that_ended_without_online_requests(ends: list[str]) -> None:
    pace, most_ms, num_interrupted, credit, has_ended = Pace(), math.inf, 0, Credit(), False
    for end in ends:
        share = SHARE if end == "tolerated" else NO_SHARE
        is_online = end in ("online", "tolerated")
        pace = pace.after(schedule_of(1, 1, share=share) if is_online else schedule_of(0, 1), 64)
        if end == "interrupted":
            pace, most_ms, num_interrupted = pace.interrupted(40.0), 20.0, num_interrupted + 1
        else:
            pace, has_ended = pace.measured(30.0, 31.0, share, 12.0), True
        if end == "offline":
            most_ms, num_interrupted = 2.0 * most_ms, 0
        if end == "tolerated":
            credit = credit.started(share, 12.0).measured(share, 12.0, 31.0)
        assert (pace.most_idle_ms, pace.num_interrupted, pace.credit) == (most_ms, num_interrupted, credit)
        assert pace.mean_step_ms == pytest.approx(30.0 if has_ended else 0.0)


def test_a_step_of_which_nothing_was_predicted_makes_the_next_no_shorter() -> None:
    pace = Pace().after(schedule_of(0, 1), 64).interrupted(0.0)
    assert (pace.most_idle_ms, pace.num_interrupted) == (math.inf, 1)
    assert pace.interrupted(40.0).interrupted(0.0).most_idle_ms == 20.0


def test_of_a_new_model_all_is_seen_anew_and_the_rest_is_remembered() -> None:
    pace = Pace(mean_step_ms=7.0, batch_size=300, credit=Credit(5.0, 2.0, 9, 4, 30, 3.0, 20))
    assert pace.of_new_model() == Pace(mean_step_ms=7.0, batch_size=300, credit=pace.credit.of_new_model())
    assert pace.of_new_model().credit.num_seen == 0
