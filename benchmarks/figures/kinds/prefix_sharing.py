"""Prefix sharing maximization on MMLU (HyGen figure 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, repeat, takewhile
from operator import eq

from benchmarks.figures.trace_lab import GIVEN, Setting, TraceLab
from benchmarks.harness.charts import Curves, Point, Style
from benchmarks.harness.page import Result
from benchmarks.lab.few_shots import as_token_ids, few_shot_prompts, token_ids_of
from benchmarks.lab.lab import SEED, Bench, System, setup_of
from benchmarks.lab.samples import BOOSTED
from loadgen.workload.backlog import OfflinePrompt
from shared.pictures import BLUE, GREEN, GREY
from shared.scheduling.orders.offline.registry import OfflineOrderKnobs, make_offline_order
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request

SMALL_CACHE_SHARE = 4  # of the memory for KV, in the second panel
LONGEST_S = 300.0  # the questions last about as long
ORDERS: dict[str, Style] = {"fcfs": ("s-", GREY), "psm": ("o-", BLUE), "psm-fair": ("^--", GREEN)}
REAL, SMALL, DEDUCTED = "prefix cache", "a quarter of the cache", "less what the one before shares"


def prefix_sharing(lab: TraceLab, setting: Setting, budgets_ms: Sequence[float]) -> Result:
    """Questions with five shots, of 57 subjects: each order over a prefix cache, over a small one, and without any
    where a prompt costs less by what it shares with the one before. Raises LoadgenError."""
    duration_s = min(lab.options.duration, LONGEST_S)
    options = lab.options
    assert options.shots is not None and options.questions is not None, GIVEN
    prompts = as_token_ids(few_shot_prompts(options.shots, options.questions, SEED))
    small = replace(setting.machine, kv_blocks=setup_of(setting.machine).limits.num_blocks // SMALL_CACHE_SHARE)
    cached = lab.bench_with(setting, prompts, duration_s)
    pressed = lab.bench_with(replace(setting, machine=small), prompts, duration_s)
    systems = {order: System.of("hygen", BOOSTED, offline_order=order) for order in ORDERS}
    deducted = {
        order: (lab.bench_with(setting, without_shared(in_order(prompts, order)), duration_s), systems["fcfs"])
        for order in ("fcfs", "psm")
    }
    points = [
        *_points(REAL, {order: (cached, system) for order, system in systems.items()}, budgets_ms),
        *_points(SMALL, {order: (pressed, system) for order, system in systems.items()}, budgets_ms),
        *_points(DEDUCTED, deducted, budgets_ms),
    ]
    caption = f"MMLU, five shots. {lab.where([setting], duration_s)}."
    return Curves("latency budget (ms)", ORDERS).result(points, caption, 3.0)


def _points(group: str, runs: dict[str, tuple[Bench, System]], budgets_ms: Sequence[float]) -> Iterator[Point]:
    for budget_ms in budgets_ms:
        fcfs = None
        for order, (bench, system) in runs.items():
            run = bench.run(system, budget_ms)
            fcfs = fcfs or run
            speed, theirs = run.offline_requests_per_s, fcfs.offline_requests_per_s
            cells = {
                "prefix sharing": group,
                "budget ms": f"{budget_ms:g}",
                "order": order,
                "questions/s": f"{speed:.1f}",
                "over fcfs": f"{speed / theirs:.2f}x" if theirs > 0 else "",
                "cached": f"{run.cached_share:.0%}" if group != DEDUCTED else "",
            }
            yield Point("", group, order, budget_ms, {"questions/s": speed}, cells)


def in_order(prompts: Sequence[OfflinePrompt], order: str) -> list[OfflinePrompt]:
    """As the offline order has them, the utility ratio being that of pure prefix sharing."""
    waiting = make_offline_order(order, OfflineOrderKnobs(utility_ratio=1.0), repeat(0.0))
    by_id = {f"offline-{index}": prompt for index, prompt in enumerate(prompts)}
    for request_id, prompt in by_id.items():
        token_ids = token_ids_of(prompt)
        waiting.add(Request(request_id, Kind.OFFLINE, len(token_ids), len(token_ids) + 1), pack_tokens(token_ids))
    return [by_id[request.request_id] for request in waiting.in_order()]


def without_shared(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """HyGen section 5.3: as lengths, each less what it shares with the one before."""
    token_ids = [[], *map(token_ids_of, prompts)]
    shared = [sum(takewhile(bool, map(eq, before, after))) for before, after in pairwise(token_ids)]
    return [
        OfflinePrompt(prompt.max_tokens, num_prompt_tokens=max(1, len(after) - num_shared))
        for prompt, after, num_shared in zip(prompts, token_ids[1:], shared, strict=True)
    ]
