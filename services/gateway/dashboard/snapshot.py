"""A moment of a stack, as the page gets it. Field names are its JSON keys."""

from __future__ import annotations

import msgspec

from services.gateway.dashboard.questions import StackAnswers
from shared.latency.histogram import LatencyHistogram
from shared.protocol.batches import Batch
from shared.protocol.budgets import BudgetRecord, SloStatus
from shared.protocol.executors import Heartbeat
from shared.protocol.slo_profile import SloProfileRecord
from shared.watch.stack_watch import ExecutorView, StackView, ended_at


class LatencyState(msgspec.Struct, frozen=True):
    """Figures of what was measured in a while; None without samples."""

    num_samples: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> LatencyState:
        return cls(histogram.num_samples, histogram.mean_ms(), histogram.quantile_ms(0.5), histogram.quantile_ms(0.99))


class ExecutorState(msgspec.Struct, frozen=True):
    """Its last heartbeat. Steps and rates are those of the last seconds; None where there were none."""

    beat: Heartbeat
    step: LatencyState
    budget_ms: float | None
    steps_per_s: float | None
    busy_share: float | None
    online_tokens_per_s: float | None
    offline_tokens_per_s: float | None
    online_slowdown: float | None

    @classmethod
    def of(cls, view: ExecutorView) -> ExecutorState:
        rates = view.steps_per_s, view.busy_share, view.online_tokens_per_s, view.offline_tokens_per_s
        return cls(view.beat, LatencyState.of(view.step_ms), view.budget_ms, *rates, view.online_slowdown)


class BatchState(msgspec.Struct, frozen=True):
    """None is not ended, or not known yet. Its errors, which may be many, and whose it is stay here."""

    id: str
    endpoint: str
    status: str
    created_at: int
    ended_at: int | None
    total: int
    done: int
    failed: int
    lines_per_s: float | None = None
    left_s: float | None = None

    @classmethod
    def of(cls, record: Batch, lines_per_s: float | None = None, left_s: float | None = None) -> BatchState:
        counts, ended_s = record.request_counts, ended_at(record) or None
        head = record.id, record.endpoint, record.status, record.created_at, ended_s
        return cls(*head, counts.total, counts.done, counts.failed, lines_per_s, left_s)


class BudgetState(BudgetRecord, frozen=True):
    """The budget of one kind of executor. ``slo``: how its SLOs are kept, ``profile``: the runs that show which budget
    keeps them; None where no SLO is to be kept, or nothing has been profiled."""

    slo: SloStatus | None = None
    profile: SloProfileRecord | None = None

    @classmethod
    def of(cls, record: BudgetRecord, answers: StackAnswers) -> BudgetState:
        key = record.profile_key
        return cls(**msgspec.structs.asdict(record), slo=answers.slos.get(key), profile=answers.profiles.get(key))


class Snapshot(msgspec.Struct, frozen=True):
    """``preset`` is None where the offline-queue has not answered. ``order``: figures of the offline order about what
    waits, by name; may be empty. ``unwell``: what is wrong, in words."""

    unix_s: float
    model: str
    preset: str | None
    order: dict[str, float]
    unwell: list[str]
    executors: list[ExecutorState]
    online: dict[str, LatencyState]  # by metric: ttft, tbt, tpot
    lines_left: int
    batches: list[BatchState]
    ended: list[BatchState]
    budgets: list[BudgetState]  # of the kinds of executors that live


def snapshot_of(view: StackView, lines_left: int, answers: StackAnswers, model: str, unix_s: float) -> Snapshot:
    """All of it together."""
    profile_keys = {executor.beat.info.profile_key for executor in view.executors}
    online = {"ttft": view.online.ttft_ms, "tbt": view.online.tbt_ms, "tpot": view.online.tpot_ms}
    return Snapshot(
        unix_s=unix_s,
        model=model,
        preset=answers.preset,
        order=answers.order,
        unwell=answers.unwell,
        executors=[ExecutorState.of(executor) for executor in view.executors],
        online={name: LatencyState.of(histogram) for name, histogram in online.items()},
        lines_left=lines_left,
        batches=[BatchState.of(batch.record, batch.lines_per_s, batch.left_s) for batch in view.batches],
        ended=[BatchState.of(record) for record in view.ended],
        budgets=[BudgetState.of(record, answers) for key, record in view.budgets.items() if key in profile_keys],
    )
