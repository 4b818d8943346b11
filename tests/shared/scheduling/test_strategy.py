"""Strategies: presets, what is to differ from them, and what fits together."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.registry import OFFLINE_ORDERS
from shared.scheduling.orders.online.registry import ONLINE_ORDERS
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.packing.deadlines.token_slo import ArrivalTokenSlo, TokenSlo
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.policy import Benefit, Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import BLIND_IDLE_BUDGET_MS, LATENCY_BUDGETS, PRESETS, Strategy, flat
from tests.shared.scheduling.factories import make_request

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "online_order": st.sampled_from(ONLINE_ORDERS),
        "offline_order": st.sampled_from(OFFLINE_ORDERS),
        "packing": st.sampled_from(list(PACKINGS)),
        "latency_budget": st.sampled_from(LATENCY_BUDGETS),
        "kv_eviction": st.sampled_from(["lru", "online-first", "task-aware"]),
        "kv_sharing": st.sampled_from(["recompute", "bidirectional", "keep-resident"]),
        "kv_reserve": st.sampled_from(["none", "burst"]),
        "offline_rate": st.sampled_from(["unlimited", "fixed"]),
        "online_overload": st.sampled_from(["best-effort", "shed"]),
        "budget_ms": st.sampled_from([0.0, 25.0]),
        "offline_qps": st.sampled_from([0.0, 2.0]),
        "batch_multiple": st.sampled_from([0, 128]),
        "utility_ratio": st.sampled_from([0.9, 0.5]),
        "vtc_weight_output": st.sampled_from([2.0, 3.0]),
    },
)


def made_of(preset: str, given: dict[str, Any]) -> Strategy | None:
    """None where its parts do not fit."""
    try:
        return Strategy.of(preset, **given)
    except ValueError:
        return None


@given(st.sampled_from(sorted(PRESETS)), CHANGES)
def test_a_strategy_is_its_preset_and_what_is_told_to_differ(preset: str, given: dict[str, Any]) -> None:
    strategy = made_of(preset, dict(given))
    if strategy is None:
        return
    told = strategy.changes()
    assert Strategy.of(preset, **told) == strategy
    assert all(flat(strategy)[name] == value != flat(PRESETS[preset])[name] for name, value in told.items())
    assert told.items() <= given.items()


def test_what_differs_is_told_by_its_name() -> None:
    assert all(strategy.changes() == {} and name == strategy.preset for name, strategy in PRESETS.items())
    assert all(Strategy.of(name) == strategy for name, strategy in PRESETS.items())
    knobs = Strategy.of("hygen", utility_ratio=0.5, online_order="vtc", vtc_weight_input=4.0)
    assert knobs.changes() == {"online_order": "vtc", "utility_ratio": 0.5, "vtc_weight_input": 4.0}
    assert Strategy.of("hygen", budget_ms=30.0).changes() == {"budget_ms": 30.0}
    fixed = Strategy.of("sarathi++", latency_budget="fixed", budget_ms=30.0)
    assert fixed.changes() == {"latency_budget": "fixed", "budget_ms": 30.0}


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [
        ("bros", {"online_order": "vtc"}, "orders online requests itself"),
        (
            "hygen",
            {"latency_budget": "deadline"},
            "works with latency budget none or fixed or profiled, not with",
        ),
        ("fcfs", {"offline_order": "psm"}, "works with offline order fcfs or none, not with psm"),
        ("fcfs", {"kv_reserve": "burst"}, "lets nobody pass: leave --kv-reserve burst out"),
        ("bros", {"batch_multiple": 128}, "cuts no prompts to multiples"),
        ("ooco", {"kv_sharing": "bidirectional"}, "set it to recompute"),
        ("hygen", {"budget_ms": 30.0, "online_overload": "shed"}, "leaves no online decode out"),
        ("ooco", {"online_overload": "shed"}, "give that as --budget-ms"),
        ("sarathi++", {"budget_ms": 30.0}, "latency budget none is no number of milliseconds"),
        ("hygen", {"offline_qps": 2.0}, "has no fixed offline rate"),
        ("hygen", {"deadline_rule": "none"}, "unknown deadline rule 'none'"),
        ("hygen", {"online_order": "none"}, "unknown online order 'none'"),
        ("hygen", {"offline_order": "best"}, "unknown offline order 'best'"),
        ("none", {}, "unknown preset 'none'"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(preset: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Strategy.of(preset, **given)


def test_a_fixed_rate_has_to_be_given() -> None:
    missing, given = Strategy.of("hygen-star"), Strategy.of("hygen-star", offline_qps=2.5)
    assert missing.missing_knob() == "preset hygen-star serves offline requests at a fixed rate: give --offline-qps"
    with pytest.raises(ValueError, match="give --offline-qps"):
        missing.make_offline_rate()
    assert given.missing_knob() == "" and given.make_offline_rate().qps == 2.5
    assert all(math.isinf(PRESETS[name].make_offline_rate().qps) for name in PRESETS if name != "hygen-star")


def test_what_moves_to_a_strict_executor_by_itself() -> None:
    """All that decodes, but offline requests where these are asked for."""
    pushing, pulling = PRESETS["hygen"], PRESETS["ooco"]
    assert not pushing.pulls and set(pushing.pushed_kinds) == set(Kind)
    assert pulling.pulls and pulling.pushed_kinds == (Kind.ONLINE,)


@pytest.mark.parametrize(("kv_sharing", "moves"), [("recompute", True), ("bidirectional", False)])
def test_kv_that_is_paused_moves_nowhere(kv_sharing: str, moves: bool) -> None:
    why = Strategy.of("hygen", kv_sharing=kv_sharing).why_no_pools
    assert (why == "") is moves and (moves or f"kv_sharing {kv_sharing}" in why)


def test_readers_are_told_to_who_evicts_by_them() -> None:
    assert [name for name in PRESETS if PRESETS[name].needs_readers] == ["echo"]
    assert Strategy.of("hygen", kv_eviction="task-aware").needs_readers
    assert not Strategy.of("online-only", kv_eviction="task-aware").needs_readers, "nobody reads anything"


@pytest.mark.parametrize(("block_size", "expected"), [(16, ["a", "c", "b"]), (64, ["a", "b", "c"])])
def test_prompts_share_what_is_in_whole_blocks(block_size: int, expected: list[str]) -> None:
    order = Strategy.of("hygen", offline_order="psm").make_offline_order(itertools.repeat(0.5), block_size)
    for request_id, first in (("a", 1), ("b", 2), ("c", 1)):
        prompt = [first] * 40 + [ord(request_id)] * 24
        order.add(make_request(request_id, Kind.OFFLINE, len(prompt)), pack_tokens(prompt))
    assert [request.request_id for request in order.in_order()] == expected


@pytest.mark.parametrize(
    ("preset", "asked", "expected"),
    [
        ("hygen", {"latency_budget_ms": None}, Policy(0.0, offline_enabled=False)),
        ("hygen", {"latency_budget_ms": 30.0}, Policy(30.0)),
        ("hygen", {"latency_budget_ms": 30.0, "model_is_known": False}, Policy(30.0)),
        ("hygen", {"latency_budget_ms": 30.0, "idle_budget_ms": 90.0}, Policy(30.0, idle_budget_ms=90.0)),
        ("hygen", {"latency_budget_ms": 30.0, "is_interruptible": True}, Policy(30.0, idle_budget_ms=math.inf)),
        ("hygen", {"latency_budget_ms": 0.0, "tolerance": 0.1}, Policy(0.0, True, idle_budget_ms=100.0, tolerance=0.1)),
        ("fcfs", {"latency_budget_ms": None}, Policy(packing="fcfs")),
        ("fcfs", {"latency_budget_ms": None, "model_is_known": False}, Policy(packing="fcfs")),
        ("online-only", {"latency_budget_ms": None}, Policy(offline_enabled=False)),
        ("bros", {"latency_budget_ms": None}, Policy(packing="deadline", growth_room=0.25)),
        (
            "bros",
            {"latency_budget_ms": None, "model_is_known": False},
            Policy(math.inf, False, "deadline", growth_room=0.25),
        ),
    ],
)
def test_a_step_is_packed_by_what_is_known(preset: str, asked: dict[str, Any], expected: Policy) -> None:
    """Without a budget that it needs, or a model to keep deadlines with, a strategy serves no offline work yet."""
    assert BLIND_IDLE_BUDGET_MS == 100.0
    assert PRESETS[preset].policy(**asked) == expected


def test_a_policy_has_all_that_a_packing_asks_of_the_strategy() -> None:
    valued = Strategy.of("echo", prefill_benefit=2.0, decode_benefit=5.0).policy(None)
    assert valued.benefit == Benefit(2.0, 5.0) and valued.packing == "kv-aware"
    assert Strategy.of("hygen", batch_multiple=128).policy(30.0).batch_multiple == 128
    shedding = Strategy.of("ooco", budget_ms=30.0, online_overload="shed", mix_samples=3).policy(30.0)
    assert (shedding.sheds_online, shedding.mix_samples) == (True, 3)


def test_deadlines_go_by_the_rule_and_the_bounds_that_are_given() -> None:
    slos = {"ttft_slo_ms": 300.0, "tpot_slo_ms": 20.0, "slo_group_tokens": 4}
    assert Strategy.of("bros", **slos).token_slo == TokenSlo(300.0, 20.0, 4)
    assert Strategy.of("bros", deadline_rule="arrival", **slos).token_slo == ArrivalTokenSlo(300.0, 20.0, 4)
    assert [name for name in PRESETS if PRESETS[name].uses_deadlines] == ["bros", "echo"]


def test_a_pool_evicts_and_a_reserve_is_left_as_they_are_named() -> None:
    pool = Strategy.of("hygen", kv_eviction="task-aware").make_pool(Limits(16, 8, 64, 4), 0)
    assert (pool.num_blocks, pool.block_size, pool.eviction.needs_readers) == (8, 16, True)
    assert [name for name in PRESETS if PRESETS[name].make_reserve().leaves_blocks] == ["echo"]
