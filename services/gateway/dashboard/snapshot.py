"""A moment of a stack, as the page gets it. Field names are its JSON keys."""

from __future__ import annotations

import msgspec

from services.gateway.dashboard.questions import StackAnswers
from shared.latency.histogram import LatencyHistogram
from shared.protocol.batches import BatchRecord
from shared.protocol.budgets import BudgetRecord
from shared.protocol.online import OnlineLatencies
from shared.protocol.slo_profile import SloProfileRecord
from shared.protocol.slo_status import SloStatus
from shared.scheduling.kv.pool import BlockOwners
from shared.watch.stack_watch import BatchView, ExecutorView, StackView, ended_at


class ExecutorState(msgspec.Struct, frozen=True):
    """Steps and rates are those of the last seconds; None where there were none."""

    executor_id: str
    engine: str
    device: str
    draining: bool
    drained: bool
    online_running: int
    online_waiting: int
    offline_running: int
    offline_waiting: int
    step_mean_ms: float | None
    step_p99_ms: float | None
    budget_ms: float | None
    steps_per_s: float | None
    busy_share: float | None
    online_tokens_per_s: float | None
    offline_tokens_per_s: float | None
    num_blocks: int
    blocks: BlockOwners

    @classmethod
    def of(cls, view: ExecutorView) -> ExecutorState:
        beat, info = view.beat, view.beat.info
        return cls(
            executor_id=info.executor_id,
            engine=info.spec.engine,
            device=info.spec.device,
            draining=beat.draining,
            drained=beat.is_drained,
            online_running=beat.online_running,
            online_waiting=beat.online_waiting,
            offline_running=beat.offline_running,
            offline_waiting=beat.offline_waiting,
            step_mean_ms=view.step_ms.mean_ms(),
            step_p99_ms=view.step_ms.quantile_ms(0.99),
            budget_ms=view.budget_ms,
            steps_per_s=view.steps_per_s,
            busy_share=view.busy_share,
            online_tokens_per_s=view.online_tokens_per_s,
            offline_tokens_per_s=view.offline_tokens_per_s,
            num_blocks=info.spec.num_blocks,
            blocks=beat.blocks,
        )


class LatencyState(msgspec.Struct, frozen=True):
    """What users got in the last minute; None without samples."""

    num_samples: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> LatencyState:
        quantiles = histogram.quantile_ms(0.5), histogram.quantile_ms(0.99)
        return cls(histogram.num_samples, histogram.mean_ms(), *quantiles)


class BatchState(msgspec.Struct, frozen=True):
    """``ended_at`` is None while it is open; lines per second and ``left_s`` where they are known."""

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
    def of(cls, record: BatchRecord, view: BatchView | None = None) -> BatchState:
        """``view``: of one that has not ended."""
        return cls(
            id=record.id,
            endpoint=record.endpoint,
            status=record.status,
            created_at=record.created_at,
            ended_at=ended_at(record) or None,
            total=record.request_counts.total,
            done=record.request_counts.done,
            failed=record.request_counts.failed,
            lines_per_s=view.lines_per_s if view else None,
            left_s=view.left_s if view else None,
        )


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
    """``preset`` is None where the offline-queue has not answered. ``unwell``: what is wrong, in words."""

    unix_s: float
    model: str
    preset: str | None
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
    return Snapshot(
        unix_s=unix_s,
        model=model,
        preset=answers.preset,
        unwell=answers.unwell,
        executors=[ExecutorState.of(executor) for executor in view.executors],
        online=_latencies(view.online),
        lines_left=lines_left,
        batches=[BatchState.of(batch.record, batch) for batch in view.batches],
        ended=[BatchState.of(record) for record in view.ended],
        budgets=[BudgetState.of(record, answers) for key, record in view.budgets.items() if key in profile_keys],
    )


def _latencies(online: OnlineLatencies) -> dict[str, LatencyState]:
    histograms = {"ttft": online.ttft_ms, "tbt": online.tbt_ms, "tpot": online.tpot_ms}
    return {name: LatencyState.of(histogram) for name, histogram in histograms.items()}
