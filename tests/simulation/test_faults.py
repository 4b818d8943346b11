"""Which faults a seed has."""

from tests.simulation.faults import KINDS, draw_faults, only
from tests.simulation.setup import draw_setup
from tests.simulation.traffic import Traffic


def test_the_same_seed_has_the_same_faults() -> None:
    setup = draw_setup("7")
    first, second = (draw_faults("7", setup, Traffic(), 10.0, 3600.0, 20.0) for _ in range(2))
    assert first == second != draw_faults("8", setup, Traffic(), 10.0, 3600.0, 20.0)


def test_all_of_them_are_undone_in_time_and_hit_somebody_who_is_there() -> None:
    setup = draw_setup("7")
    faults = draw_faults("7", setup, Traffic(), 10.0, 3600.0, 2.0)
    assert sorted({fault.kind for fault in faults}) == sorted(KINDS)
    assert all(fault.at_s >= 10.0 and fault.at_s + fault.lasts_s < 3600.0 for fault in faults)
    assert all(fault.target in KINDS[fault.kind][1](setup) for fault in faults)


def test_some_can_be_left_out() -> None:
    faults = draw_faults("7", draw_setup("7"), Traffic(), 0.0, 600.0, 5.0)
    assert [fault.number for fault in only(faults, (1, 4))] == [1, 4]
    assert only(faults, None) == faults


def test_a_run_may_have_none() -> None:
    assert draw_faults("7", draw_setup("7"), Traffic(), 0.0, 600.0, 5.0, ()) == []
