"""What a registration and a heartbeat come to."""

import pytest
from msgspec.structs import replace

from shared.protocol.executors import ExecutorCounters, Heartbeat
from shared.scheduling.limits import Limits
from shared.scheduling.placement.role import Role
from shared.scheduling.step_sizes import StepSizes
from tests.shared.replica.factories import make_info


@pytest.mark.parametrize(("adapter", "runs"), [("", True), ("sql", True), ("law", False)])
def test_an_adapter_has_to_be_loaded(adapter: str, runs: bool) -> None:
    why = make_info(adapters=("sql", "chat")).spec.why_without(adapter)
    assert (why == "") is runs and (runs or "'law' is not loaded" in why)
    assert make_info().spec.why_without("") == "" != make_info().spec.why_without("sql")


@pytest.mark.parametrize("role", Role)
def test_a_role_without_a_link_is_that_of_a_mixed_one(role: Role) -> None:
    info = make_info(role=role)
    assert info.kv_link and info.pool is role
    assert replace(info, kv_link="").pool is Role.MIXED


def test_sizes_of_steps_change_and_the_largest_do_not() -> None:
    info = make_info(max_num_seqs=8, max_num_batched_tokens=64)
    assert info.sizes == info.largest_sizes == StepSizes(64, 8)
    resized = replace(info, largest=StepSizes(512, 32)).resized(StepSizes(128, 16))
    assert (resized.sizes, resized.largest_sizes) == (StepSizes(128, 16), StepSizes(512, 32))
    assert replace(resized, largest=None, max_num_batched_tokens=64, max_num_seqs=8) == info


def test_a_schedule_keeps_to_what_the_engine_has() -> None:
    info = make_info(max_num_seqs=8, max_num_batched_tokens=64, block_size=32, num_blocks=10, swap_ms_per_slot=0.5)
    assert info.limits() == Limits(32, 10, 64, 8, swap_ms_per_slot=0.5) and info.num_kv_tokens == 320


@pytest.mark.parametrize("held", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 2, 3, 4)])
@pytest.mark.parametrize("draining", [False, True])
def test_who_takes_nothing_is_drained_once_it_holds_nothing(draining: bool, held: tuple[int, int, int, int]) -> None:
    heartbeat = Heartbeat(make_info(), ExecutorCounters(), draining, *held, num_free_blocks=9)
    assert heartbeat.num_held == sum(held)
    assert heartbeat.is_drained is (draining and not any(held))
