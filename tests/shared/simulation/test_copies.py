"""When simulated copies of KV slots are done."""

import pytest

from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.simulation.copies import CopyTimeline


def restores(count: int) -> SlotOperations:
    return SlotOperations(restores=[(slot, slot) for slot in range(count)])


def checkpoints(count: int) -> SlotOperations:
    return SlotOperations(checkpoints=[(slot, slot) for slot in range(count)])


@pytest.mark.parametrize(("begun_ms", "waits_ms"), [(100.0, 30.0), (80.0, 10.0), (60.0, 0.0)])
def test_a_step_waits_for_what_has_not_come_beside_the_step_before(begun_ms: float, waits_ms: float) -> None:
    timeline, copies = CopyTimeline(1.0), restores(30)
    timeline.start(copies, begun_ms)
    assert timeline.wait_ms([copies], 100.0) == waits_ms


def test_copies_that_were_not_begun_are_when_the_step_is() -> None:
    assert CopyTimeline(1.0).wait_ms([restores(30)], 100.0) == 30.0
    assert CopyTimeline(1.0).wait_ms([SlotOperations(moves=[(1, 2)])], 100.0) == 0.0


def test_nobody_waits_for_checkpoints_and_one_restore_waits_for_another() -> None:
    timeline = CopyTimeline(1.0)
    assert timeline.wait_ms([checkpoints(50)], 0.0) == 0.0
    timeline.start(restores(30), 0.0)
    assert timeline.wait_ms([restores(10)], 20.0) == 20.0
    assert timeline.wait_ms([checkpoints(5)], 25.0) == 0.0


def test_a_slot_takes_what_the_bus_takes_for_it() -> None:
    timeline, (first, second) = CopyTimeline(0.25), (restores(40), restores(20))
    for copies in (first, second, first):
        timeline.start(copies, 100.0)
    assert timeline.wait_ms([first], 104.0) == 6.0
    assert timeline.wait_ms([second, checkpoints(8)], 110.0) == 5.0
    assert timeline.wait_ms([], 110.0) == timeline.wait_ms([restores(0)], 110.0) == 0.0
