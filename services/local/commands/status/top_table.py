"""A moment of a stack as tables: the screen of ``slackwater top``, and the one line below ``slackwater up``."""

from collections.abc import Sequence
from math import inf

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.errors import SloError
from loadgen.report.slo import parse_slo
from services.local.commands.output import SplitTable
from services.local.commands.status.table import role_and_draining_text
from shared.latency.histogram import LatencyHistogram
from shared.process.service import Details
from shared.protocol.profiling.budgets import SloStatus
from shared.protocol.profiling.slo_profile import SloVerdict
from shared.watch.stack_status import StackReport, figure_text, queue_figures
from shared.watch.stack_watch import ONLINE_S, BatchView, ExecutorView, StackView

MAX_BATCHES = 10
KINDS = ("online", "offline")
QUEUES = ("pool_", "gateway_")
UNKNOWN = "-"
LATENCIES = {"TTFT": "ttft_ms", "TBT": "tbt_ms", "TPOT": "tpot_ms", "E2E": "e2e_ms"}
EXECUTOR_COLUMNS = (
    *("executor", "engine", "online", "waiting", "offline", "waiting"),
    *("step ms", "p99", "budget", "slowdown", "steps/s", "busy", "online tok/s", "offline tok/s", "KV used"),
)

MOVES = "given/taken"  # a column where requests move


def screen(head: str, unwell: Sequence[str], report: StackReport, heard_s: float = inf) -> Group:
    """``unwell``: what is not well, in words; ``heard_s``: for how long the stack has been listened to."""
    view, queues, slos = report.view, report.status.queues, report.status.slos
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [Text(line, style="red") for line in unwell]
    tables = _executor_table(view.executors), _online_table(view, slos, heard_s)
    parts += [Text(), tables[0], Text(), tables[1], Text(), _queue_line(queues)]
    if view.batches:
        parts += [Text(), _batch_table(view.batches)]
    return Group(*parts)


def essentials(view: StackView) -> str:
    """What matters most, in one line."""
    beats = [executor.beat for executor in view.executors]
    load = queue_figures(beats, ())
    parts = [f"{kind} {load[f'{kind}_running']} running, {load[f'{kind}_waiting']} waiting" for kind in KINDS]
    parts += [f"{sum(each.offline_tokens_per_s or 0.0 for each in view.executors):,.0f} offline tokens/s"]
    parts += [f"TTFT p99 {p99:,.0f} ms" for p99 in [view.online.ttft_ms.quantile_ms(0.99)] if p99 is not None]
    parts += [f"TBT p99 {p99:,.0f} ms" for p99 in [view.online.tbt_ms.quantile_ms(0.99)] if p99 is not None]
    if view.batches:
        done = sum(batch.done for batch in view.batches)
        total = sum(batch.record.request_counts.total for batch in view.batches)
        parts += [f"batches {done:,} of {total:,} lines"]
    return " | ".join(parts)


def _executor_table(executors: Sequence[ExecutorView]) -> SplitTable:
    shows_moves = any(_has_moves(executor) for executor in executors)
    shows_models = len({executor.beat.info.spec.model for executor in executors}) > 1
    table = SplitTable((*EXECUTOR_COLUMNS, MOVES) if shows_moves else EXECUTOR_COLUMNS, num_left=2)
    for executor in executors:
        beat, info = executor.beat, executor.beat.info
        over = executor.budget_ms is not None and (executor.step_ms.mean_ms() or 0.0) > executor.budget_ms
        table.add_row(
            info.executor_id + role_and_draining_text(beat, executor.acts_as),
            f"{info.spec.model} by {info.spec.engine}" if shows_models else info.spec.engine,
            *map(str, (beat.online_running, beat.online_waiting, beat.offline_running, beat.offline_waiting)),
            Text(_figure(executor.step_ms.mean_ms(), ".1f"), style="red" if over else ""),
            _figure(executor.step_ms.quantile_ms(0.99), ".1f"),
            _figure(executor.budget_ms, ".1f"),
            _figure(executor.online_slowdown, ".2f"),
            _figure(executor.steps_per_s, ".1f"),
            _figure(executor.busy_share, ".0%"),
            _figure(executor.online_tokens_per_s, ",.0f"),
            _figure(executor.offline_tokens_per_s, ",.0f"),
            f"{1 - beat.num_free_blocks / info.spec.num_blocks:.0%}",
            *([f"{beat.counters.handed_over}/{beat.counters.taken_over}"] if shows_moves else []),
        )
    return table


def _has_moves(executor: ExecutorView) -> bool:
    counters = executor.beat.counters
    return bool(counters.handed_over or counters.taken_over)


def _online_table(view: StackView, slos: Sequence[SloStatus], heard_s: float) -> Table:
    """TTFT and TBT of the last minute, or since when they are known, and what was promised of them."""
    span = "minute" if heard_s >= ONLINE_S else f"{heard_s:.0f} s"
    table = Table(f"last {span}", "samples", "mean ms", "p50", "p99", "to keep", box=None, header_style="bold")
    verdicts = [verdict for status in slos for verdict in status.measured]
    online = view.online
    for name, metric in LATENCIES.items():
        histogram: LatencyHistogram = getattr(online, metric)
        figures = [histogram.mean_ms(), histogram.quantile_ms(0.5), histogram.quantile_ms(0.99)]
        promised = [_verdict(verdict) for verdict in verdicts if _is_of(verdict, metric)]
        table.add_row(
            name,
            f"{histogram.num_samples:,}",
            *(_figure(figure, ",.1f") for figure in figures),
            Text(", ").join(promised),
        )
    return table


def _is_of(verdict: SloVerdict, metric: str) -> bool:
    """However it is spelled; what only another version understands is of none."""
    try:
        return parse_slo(verdict.expr).metric == metric
    except SloError:
        return False


def _verdict(verdict: SloVerdict) -> Text:
    if verdict.value_ms is None or verdict.bound_ms is None:
        return Text(verdict.expr)
    return Text(f"{verdict.expr} {'kept' if verdict.met else 'BROKEN'}", style="green" if verdict.met else "red")


def _queue_line(queues: Details) -> Text:
    """Of the offline pool and the gateway; what waits on executors stands in their table."""
    figures = [
        f"{name.replace('_', ' ')} {figure_text(value)}" for name, value in queues.items() if name.startswith(QUEUES)
    ]
    return Text(", ".join(figures) or "neither offline-queue nor gateway answers")


def _batch_table(batches: Sequence[BatchView]) -> SplitTable:
    table = SplitTable(("batch", "status", "done", "", "failed", "left"), num_left=2)
    shows_models = len({batch.record.model_name for batch in batches}) > 1
    for batch in batches[:MAX_BATCHES]:
        record, counts = batch.record, batch.record.request_counts
        share = f"{batch.done / counts.total:.0%}" if counts.total else UNKNOWN
        left = UNKNOWN if batch.left_s is None else duration(batch.left_s)
        done = f"{batch.done:,} of {counts.total:,}"
        status = f"{record.status}, {record.model_name}" if shows_models else record.status
        table.add_row(record.id, status, done, share, f"{counts.failed:,}", left)
    if len(batches) > MAX_BATCHES:
        table.add_row(f"and {len(batches) - MAX_BATCHES} more", *[""] * 5)
    return table


def duration(seconds: float) -> str:
    """``1:02:03``; ``4:05`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
