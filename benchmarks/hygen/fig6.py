"""Figure 6: prefix sharing maximization on MMLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat

from benchmarks.charts import BLUE, GREEN, GREY, from_zero, legend_above, panels
from benchmarks.hygen.bench import ONLINE_ONLY, Bench, System
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA
from benchmarks.page import Result, Table
from loadgen.backlog import OfflinePrompt
from services.profiler.simulation.encoding import PromptEncoder
from shared.scheduling.orders.offline.registry import OfflineOrderKnobs, make_offline_order
from shared.scheduling.orders.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request

BUDGETS_MS = (14.0, 18.0, 25.0, 40.0)
SMALL_CACHE_SHARE = 4  # of the memory for KV, in the second panel
LONGEST_S = 300.0  # the questions last about as long
SEED = 0
ORDERS = {"fcfs": ("s-", GREY), "psm": ("o-", BLUE), "psm-fair": ("^--", GREEN)}
REAL, SMALL, DEDUCTED = "prefix cache", "a quarter of the cache", "less what the one before shares"
HEADER = ("prefix sharing", "budget ms", "fcfs: questions/s", "psm", "psm-fair")


@dataclass(frozen=True, slots=True)
class Served:
    """One run."""

    questions_per_s: float
    cached_share: float  # of the prompt tokens that were let in, found in the prefix cache


def make(lab: Lab) -> Result:
    prompts = _encoded(lab.questions(SEED))
    bench = _bench(lab, prompts)
    small = _bench(lab, prompts, bench.phase(ONLINE_ONLY).executor.replica.pool.num_blocks // SMALL_CACHE_SHARE)
    runs = {
        REAL: {order: _serve(bench, order) for order in ORDERS},
        SMALL: {order: _serve(small, order) for order in ORDERS},
        DEDUCTED: {
            order: _serve(_bench(lab, without_shared(in_order(prompts, order))), "fcfs") for order in ("fcfs", "psm")
        },
    }
    figure, axes = panels(1, len(runs), 3.0)
    for panel, (title, runs_by_order) in zip(axes[0], runs.items(), strict=True):
        for order, served in runs_by_order.items():
            style, colour = ORDERS[order]
            panel.plot(BUDGETS_MS, [each.questions_per_s for each in served], style, color=colour, label=order)
        panel.set_title(title)
        panel.set_xlabel("latency budget (ms)")
        from_zero(panel)
    axes[0][0].set_ylabel("questions/s")
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    where = f"{rates([bench])}; {bench.load.duration_s:g} s of the trace from {lab.inputs.start_s:g} s on"
    rows = [row for sharing, runs_by_order in runs.items() for row in _rows(sharing, runs_by_order)]
    return Result("fig6", [Table(f"MMLU, five shots. {where}.", HEADER, rows)], figure)


def in_order(prompts: Sequence[OfflinePrompt], order: str) -> list[OfflinePrompt]:
    """As the offline order has them, the utility ratio being that of pure prefix sharing."""
    waiting = make_offline_order(order, OfflineOrderKnobs(utility_ratio=1.0), repeat(0.0))
    by_id = {}
    for index, prompt in enumerate(prompts):
        request_id = f"offline-{index}"
        by_id[request_id] = prompt
        token_ids = _token_ids(prompt)
        waiting.add(Request(request_id, Kind.OFFLINE, len(token_ids), len(token_ids) + 1), pack_tokens(token_ids))
    return [by_id[request.request_id] for request in waiting.in_order()]


def without_shared(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """HyGen section 5.3: as lengths, each less what it shares with the one before."""
    first = [len(_token_ids(prompt)) for prompt in prompts[:1]]
    lengths = first + [
        len(after) - min(_num_shared(before, after), len(after) - 1)
        for before, after in pairwise(map(_token_ids, prompts))
    ]
    return [
        OfflinePrompt(prompt.max_tokens, num_prompt_tokens=length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


def _num_shared(before: Sequence[int], after: Sequence[int]) -> int:
    pairs = zip(before, after, strict=False)
    return next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(before), len(after)))


def _encoded(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """As token ids, a token for every four characters."""
    encoder = PromptEncoder(None)
    return [replace(prompt, text=None, body={"prompt": encoder.token_ids(prompt)}) for prompt in prompts]


def _token_ids(prompt: OfflinePrompt) -> list[int]:
    assert prompt.body is not None
    token_ids: list[int] = prompt.body["prompt"]
    return token_ids


def _bench(lab: Lab, prompts: list[OfflinePrompt], kv_blocks: int | None = None) -> Bench:
    """``kv_blocks``: instead of what the GPU has room for."""
    setting = replace(LLAMA, machine=replace(LLAMA.machine, kv_blocks=kv_blocks))
    return lab.bench_of(setting, lab.load(setting, prompts, min(lab.inputs.duration_s, LONGEST_S)))


def _serve(bench: Bench, order: str) -> list[Served]:
    """A run for each budget."""
    served = []
    for budget_ms in BUDGETS_MS:
        phase = bench.phase(System("hygen", order), budget_ms)
        phase.run()
        offline, totals = phase.outcome().offline, phase.executor.replica.totals
        assert offline is not None
        entered = totals.prompt_tokens + totals.cached_tokens
        served.append(Served(offline.requests_per_s, totals.cached_tokens / max(1, entered)))
    return served


def _rows(sharing: str, runs_by_order: Mapping[str, Sequence[Served]]) -> list[list[str]]:
    rows = []
    for index, budget_ms in enumerate(BUDGETS_MS):
        row = [sharing, f"{budget_ms:g}"]
        theirs = runs_by_order["fcfs"][index].questions_per_s
        for order in ORDERS:
            if order not in runs_by_order:
                row.append("")
                continue
            served = runs_by_order[order][index]
            gain = f", {served.questions_per_s / theirs:.2f}x" if order != "fcfs" and theirs > 0 else ""
            cached = "" if sharing == DEDUCTED else f", {100 * served.cached_share:.0f}% cached"
            row.append(f"{served.questions_per_s:.1f}{gain}{cached}")
        rows.append(row)
    return rows
