"""Mixes of both kinds of requests in virtual time, of a seed: few blocks, odd knobs, whatever a strategy allows.

``python -m tests.shared.simulation.mixes FIRST LAST`` plays more of them than the tests do.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shared.latency.linear import LinearLatencyModel
from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import ENDS_WELL, SamplingParams
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import PRESET_NAMES, Strategy
from shared.simulation.executor import Progress
from shared.simulation.setup import ExecutorSetup, in_pools
from shared.simulation.system import VirtualSystem

IDLE_S = 120.0  # in which nobody had a token: nobody will
MAX_TOKENS = 160  # of a request, prompt and output
NO_TIME = LinearLatencyModel(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
MODELS = (
    LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5),
    LinearLatencyModel(1.0, 0.01, 0.0, 0.0, 0.0, 0.01, 0.05),
    LinearLatencyModel(20.0, 1.0, 0.01, 0.0, 0.0, 0.5, 0.5),
    LinearLatencyModel(5.0, 0.1, 1.0, 0.0, 0.0, 0.1, 0.5),  # whose long contexts take long
)
ODD_KNOBS: dict[str, tuple[object, ...]] = {
    "kv_sharing": ("recompute", "keep-resident", "bidirectional"),
    "kv_reserve": ("none", "burst"),
    "kv_eviction": ("lru", "online-first", "task-aware"),
    "batch_multiple": (4, 16, 64),
    "growth_room": (0.0, 0.25, 0.5, 1.0),
    "budget_ms": (1.0, 5.0, 6.0, 10.0, 30.0, 100.0),
    "tolerance": (0.0, 0.001, 0.02, 0.5),
    "idle_budget_ms": (1.0, 6.0, 30.0),
    "offline_order": ("fcfs", "psm", "psm-fair", "kv-aware", "blend"),
    "online_order": ("fcfs", "vtc"),
    "packing": tuple(PACKINGS),
    "latency_budget": ("none", "fixed", "profiled", "deadline"),
    "online_overload": ("shed",),
    "ttft_slo_ms": (1.0, 20.0, 400.0),
    "tpot_slo_ms": (1.0, 6.0, 20.0, 200.0),
    "slo_group_tokens": (1, 4, 10),
    "deadline_rule": ("last-token", "arrival", "first-token"),
    "mix_samples": (0, 1, 4),
    "offline_handover": ("pushed", "pulled"),
}


@dataclass(frozen=True)
class Mix:
    """``rng``: of all that is drawn further, so a mix is played once."""

    rng: random.Random
    setups: list[ExecutorSetup]
    message_s: float


def draw_mix(seed: int) -> Mix:
    rng = random.Random(f"mix {seed}")
    strategy = _draw_strategy(rng)
    block_size, depth = rng.choice((1, 2, 8, 16, 16)), rng.choice((1, 1, 1, 2, 3))
    num_blocks = rng.choice((3, 4, 6, 8, 10, 12, 16)) * (4 if block_size == 1 else 1)
    spec = EngineSpec(
        *("m", "simulated", "none", "float16", 512, 1 << 20, block_size, num_blocks, (), depth),
        num_host_slots=rng.choice((0, 16, 512, 100_000)),
        is_interruptible=depth == 1 and rng.random() < 0.3,
    )
    model = rng.choice(MODELS)
    setup = ExecutorSetup(
        Limits(block_size, num_blocks, rng.choice((4, 16, 64, 64, 256)), rng.choice((1, 2, 4, 16))),
        spec,
        strategy,
        rng.choice((model, model, NO_TIME, LinearLatencyModel(50.0, 5.0, 0.001, 0.0, 0.0, 0.1, 0.5))),
        model,
        noise=rng.choice((0.0, 0.3)),
        seed=seed,
    )
    num_executors = rng.choice((1, 1, 1, 2, 3))
    has_pools = num_executors > 1 and not strategy.why_no_pools and rng.random() < 0.5
    setups = in_pools(setup, num_executors, rng.randrange(1, num_executors)) if has_pools else [setup] * num_executors
    return Mix(rng, setups, rng.choice((0.0, 0.0, 0.004, 0.05)))


def _draw_strategy(rng: random.Random) -> Strategy:
    """Of any preset that takes offline requests, with some of the knobs turned; what fits nothing is drawn again."""
    while True:
        preset = rng.choice([name for name in PRESET_NAMES if name != "online-only"])
        share = rng.choice((0.0, 0.15, 0.3))
        knobs = {name: rng.choice(values) for name, values in ODD_KNOBS.items() if rng.random() < share}
        if preset == "hygen-star":
            knobs["offline_qps"] = rng.choice((0.5, 5.0, 50.0))
        try:
            strategy = Strategy.of(preset, **knobs)
        except ValueError:
            continue
        needs_profile = strategy.latency_budget == "fixed" and not strategy.budget_ms
        if not (strategy.missing_knob() or needs_profile):
            return strategy


def play(seed: int) -> None:
    """Raises AssertionError where a request does not end well, all stand still, or something is left; and where one
    ends twice, but for messages that take longer than steps, beside which a request may run again elsewhere."""
    mix = draw_mix(seed)
    rng, setups = mix.rng, mix.setups
    ended, heard_s = Counter[str](), 0.0

    def take(progress: Progress) -> None:
        nonlocal heard_s
        ended.update(each.sequence.request_id for each in progress.ended if each.finish_reason in ENDS_WELL)
        assert not any(each.error for each in progress.ended), progress.ended
        if progress.ended or progress.outputs:
            heard_s = system.events.now_s

    order = setups[0].strategy.make_offline_order(iter(random.Random(0).random, None), setups[0].limits.block_size)
    system = VirtualSystem(setups, FairShare(order), take, mix.message_s)
    events = system.events
    arrivals = _draw_arrivals(rng, system, setups[0].limits)
    for at_s, _, arrive in arrivals:
        events.at(at_s, arrive)
    expected = {request_id for _, request_id, _ in arrivals}
    last_s = max(at_s for at_s, *_ in arrivals)
    while events.next_s is not None:
        events.run_next()
        assert events.now_s - max(heard_s, last_s) < IDLE_S or ended.keys() == expected, expected - ended.keys()
    assert ended.keys() == expected, f"all stand still: {expected - ended.keys()}"
    assert mix.message_s or ended.total() == len(expected), f"twice: {ended - Counter(expected)}"
    for executor in system.executors.values():
        assert not executor.replica.has_work and executor.replica.pool.num_free == setups[0].limits.num_blocks
        executor.replica.pool.check_integrity()
        executor.replica.table.check_integrity()
    system.queue.pool.check_integrity()
    assert not len(system.queue.pool)


def _draw_arrivals(
    rng: random.Random, system: VirtualSystem, limits: Limits
) -> list[tuple[float, str, Callable[[], None]]]:
    """(time, request's id, what happens then), by time."""
    span_s, most = rng.choice((0.01, 0.5, 3.0)), min(MAX_TOKENS, limits.num_blocks * limits.block_size)
    arrivals: list[tuple[float, str, Callable[[], None]]] = []
    for number in range(rng.choice((1, 2, 3, 5, 8, 12))):
        at_s = rng.choice((0.0, rng.uniform(0, span_s)))
        request = _draw_request(rng, f"batch{number % 3}.{number}", Kind.OFFLINE, number, most, at_s)
        arrivals.append((at_s, request.request_id, partial(system.queue.add, [_packed(request)])))
    for number in range(rng.choice((0, 1, 2, 3, 5, 8, 12))):
        at_s = rng.uniform(0, span_s)
        request = _draw_request(rng, f"on-{number}", Kind.ONLINE, 100 + number, most, at_s)
        arrivals.append((at_s, request.request_id, partial(system.submit, request)))
    return sorted(arrivals, key=lambda arrival: arrival[:2])


def _draw_request(
    rng: random.Random, request_id: str, kind: Kind, number: int, most: int, at_s: float
) -> GenerateRequest:
    """Some begin with one of three prompts."""
    num_tokens = rng.randint(1, max(1, rng.choice((most - 2, most // 4, min(40, most - 2)))))
    num_shared = min(num_tokens, rng.choice((0, 0, 32, 64, 128)))
    prompt = [9 + rng.randrange(3)] * num_shared + [1000 * (1 + number) + n for n in range(num_tokens - num_shared)]
    max_tokens = max(1, min(most - num_tokens, rng.choice((1, 2, rng.randint(1, 80)))))
    sampling, client_id = SamplingParams(max_tokens, seed=number, ignore_eos=True), f"client-{rng.randrange(3)}"
    return GenerateRequest(request_id, kind, prompt, sampling, at_s, client_id=client_id)


def _packed(request: GenerateRequest) -> tuple[Request, PackedRequest]:
    num_tokens, sampling = len(request.prompt_token_ids), request.sampling
    total = num_tokens + sampling.max_tokens
    scheduled = Request(
        *(request.request_id, request.kind, num_tokens, total),
        ends_at_limit=sampling.ends_at_limit,
        arrival_s=request.arrival_s,
    )
    return scheduled, PackedRequest.of(request)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
        try:
            play(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}\n  {draw_mix(seed).setups[0]}", flush=True)
