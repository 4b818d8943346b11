"""A moment of a stack, as the page gets it. Field names are its JSON keys."""

from __future__ import annotations

import msgspec

from services.gateway.dashboard.parts import Part, Parts
from services.gateway.dashboard.questions import StackAnswers
from services.gateway.http.tally import HttpState
from shared.clock import Clock
from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import Heartbeat
from shared.protocol.offline.batches import BatchRecord, LineError
from shared.protocol.profiling.budgets import BudgetRecord, SloStatus
from shared.protocol.profiling.slo_profile import SloProfileRecord
from shared.protocol.services import ServiceStatus
from shared.watch.pools import role_text
from shared.watch.stack_watch import BatchView, ExecutorView, ended_at

MAX_ERRORS = 3


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
    role_text: str  # of which pool it is; empty without pools
    model: str  # as clients call it, where there are several

    @classmethod
    def of(cls, view: ExecutorView, parts: Parts) -> ExecutorState:
        rates = view.steps_per_s, view.busy_share, view.online_tokens_per_s, view.offline_tokens_per_s
        text = role_text(view.beat, view.acts_as)
        model = parts.label_of(view.beat.info.spec.model)
        return cls(view.beat, LatencyState.of(view.step_ms), view.budget_ms, *rates, view.online_slowdown, text, model)


class BatchState(msgspec.Struct, frozen=True):
    """None is not ended, or not known yet. Of why it failed only the beginning; whose it is stays here."""

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
    metadata: dict[str, str] | None = None
    why: list[str] = []  # the first errors of its input file
    num_errors: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    model: str = ""  # as clients call it, where there are several

    @classmethod
    def of(
        cls, record: BatchRecord, parts: Parts, lines_per_s: float | None = None, left_s: float | None = None
    ) -> BatchState:
        counts, errors = record.request_counts, record.errors.data if record.errors else []
        return cls(
            id=record.id,
            endpoint=record.endpoint,
            status=record.status,
            created_at=record.created_at,
            ended_at=ended_at(record) or None,
            total=counts.total,
            done=counts.done,
            failed=counts.failed,
            lines_per_s=lines_per_s,
            left_s=left_s,
            metadata=record.metadata,
            why=[_error_text(error) for error in errors[:MAX_ERRORS]],
            num_errors=len(errors),
            output_file_id=record.output_file_id,
            error_file_id=record.error_file_id,
            model=parts.label_of(parts.model_of(record)),
        )


def _error_text(error: LineError) -> str:
    return error.message if error.line is None else f"line {error.line}: {error.message}"


class ProcessState(msgspec.Struct, frozen=True):
    """A process that answered lately. ``restarts``: of all of its name, that this gateway has seen; ``started_s``: unix
    time."""

    name: str
    pid: int
    health: str
    is_well: bool
    started_s: float
    restarts: int

    @classmethod
    def of(cls, status: ServiceStatus, restarts: int) -> ProcessState:
        return cls(status.name, status.pid, status.health, status.is_well, status.started_s, restarts)


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
    """``model``: what is shown; ``models``: what can be, as clients call it. ``preset`` is None where the
    offline-queue has not answered. ``order``: figures of the offline order about what waits, by name; may be empty.
    ``unwell``: what is wrong, in words. ``num_open`` and ``lines_left`` are of all batches, whoever sees which;
    ``left_s``: how long these lines take, None where that is not known."""

    unix_s: float
    model: str
    models: list[str]
    preset: str | None
    order: dict[str, float]
    unwell: list[str]
    executors: list[ExecutorState]
    online: dict[str, LatencyState]  # by metric: ttft, tbt, tpot, e2e
    num_open: int
    lines_left: int
    left_s: float | None
    batches: list[BatchState]
    ended: list[BatchState]
    budgets: list[BudgetState]  # of the kinds of executors that live
    slos: list[SloStatus]  # of those of them that have no budget
    http: HttpState  # of this gateway
    processes: list[ProcessState]


def snapshot_of(part: Part, parts: Parts, answers: StackAnswers, http: HttpState, clock: Clock) -> Snapshot:
    """All of one part together."""
    view, told = part.watch.view(clock.monotonic_s()), answers.of_model(part.model)
    profile_keys = view.profile_keys
    online = {name: getattr(view.online, f"{name}_ms") for name in ("ttft", "tbt", "tpot", "e2e")}
    lines_left, lines_per_s = part.watch.lines_left(), sum(each.lines_per_s or 0.0 for each in view.batches)
    return Snapshot(
        unix_s=clock.unix_s(),
        model=part.label,
        models=list(parts.names.values()),
        preset=told.preset,
        order=told.order,
        unwell=answers.unwell,
        executors=[ExecutorState.of(executor, parts) for executor in view.executors],
        online={name: LatencyState.of(histogram) for name, histogram in online.items()},
        num_open=len(view.batches),
        lines_left=lines_left,
        left_s=lines_left / lines_per_s if lines_left and lines_per_s else None,
        batches=_open(view.batches, parts),
        ended=_ended(view.ended, parts),
        budgets=[BudgetState.of(record, answers) for key, record in view.budgets.items() if key in profile_keys],
        slos=[status for key, status in answers.slos.items() if key in profile_keys and key not in view.budgets],
        http=http,
        processes=[ProcessState.of(each, answers.restarts.get(each.name, 0)) for each in answers.processes],
    )


def with_batches(snapshot: Snapshot, parts: Parts, batches: list[BatchView], ended: list[BatchRecord]) -> Snapshot:
    """The same moment, for who sees these batches only."""
    return msgspec.structs.replace(snapshot, batches=_open(batches, parts), ended=_ended(ended, parts))


def _open(batches: list[BatchView], parts: Parts) -> list[BatchState]:
    return [BatchState.of(batch.record, parts, batch.lines_per_s, batch.left_s) for batch in batches]


def _ended(records: list[BatchRecord], parts: Parts) -> list[BatchState]:
    return [BatchState.of(record, parts) for record in records]
