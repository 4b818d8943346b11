"""What is read whenever metrics are asked for: of this process, of executors by their heartbeats, of the stack as the
dashboard follows it."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from prometheus_client import CollectorRegistry

from services.gateway.api.context import Context
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.server import Listener
from services.gateway.live.registry import LiveExecutor
from services.gateway.metrics import tables
from services.gateway.metrics.series import Readings, Series
from services.gateway.models import Models
from shared.protocol.profiling.slo_profile import SloVerdict


def observe(registry: CollectorRegistry, context: Context, http: Listener) -> None:
    """All series that are not counted as things happen."""
    _observe_process(registry, context, http)
    _observe_executors(registry, context)
    _observe_stack(registry, context.dashboard)


def _observe_process(registry: CollectorRegistry, context: Context, http: Listener) -> None:
    models, bus = context.models, context.bus
    counts: dict[str, Callable[[], int]] = {
        "live_requests": models.num_live,
        "waiting_requests": lambda: sum(len(each.tracker.room) for each in models),
        "flex_requests": lambda: sum(each.flex.num_live for each in models),
        "connections": lambda: http.num_connections,
        "answering": lambda: http.num_answering,
        "viewers": lambda: context.dashboard.num_viewers,
        "stalled": lambda: http.clients.num_stalled,
        "refused_connections": lambda: http.clients.num_refused,
        "reconnects": lambda: bus.reconnects,
        "dropped": lambda: bus.num_dropped,
        "failed": lambda: bus.num_failed,
    }
    for name, series in tables.PROCESS.items():
        series.observe(registry, _single(counts[name]))


def _single(count: Callable[[], int]) -> Callable[[], Readings]:
    return lambda: [(count(), {})]


def _observe_executors(registry: CollectorRegistry, context: Context) -> None:
    models, hub = context.models, context.dashboard

    def of_each(series: Series, read: Callable[[LiveExecutor], float]) -> None:
        series.observe(registry, lambda: [(read(each), _id_of(each)) for each in _live(models)])

    tables.MODEL_EXECUTORS.observe(
        registry,
        lambda: [(len(model.registry.available()), {"model_name": model.served.name}) for model in models],
    )
    tables.EXECUTOR_UP.observe(registry, lambda: _up(models))
    tables.EXECUTOR_LOAD.observe(
        registry,
        lambda: [
            (model.router.load_ms(each) / 1e3, _id_of(each)) for model in models for each in model.registry.live()
        ],
    )
    for name, series in tables.HEARTBEAT.items():
        of_each(series, attrgetter(f"heartbeat.{name}"))
    for name, series in tables.EXECUTOR_COUNTERS.items():
        of_each(series, attrgetter(f"heartbeat.counters.{name}"))
    of_each(tables.NUM_BLOCKS, lambda executor: executor.info.spec.num_blocks)
    of_each(tables.DRAINING, lambda executor: executor.heartbeat.draining)
    tables.BLOCKS.observe(registry, lambda: _block_owners(models))
    tables.EXECUTOR_BUDGET.observe(
        registry,
        lambda: [
            (each.budget_ms / 1e3, {"executor_id": each.beat.info.executor_id})
            for each in hub.view().executors
            if each.budget_ms is not None
        ],
    )
    tables.SLOWDOWN.observe(
        registry,
        lambda: [
            (each.online_slowdown, {"executor_id": each.beat.info.executor_id})
            for each in hub.view().executors
            if each.online_slowdown is not None
        ],
    )


def _id_of(executor: LiveExecutor) -> dict[str, str]:
    return {"executor_id": executor.info.executor_id}


def _live(models: Models) -> Iterator[LiveExecutor]:
    return (executor for model in models for executor in model.registry.live())


def _up(models: Models) -> Readings:
    """One that is of another model than before may be registered with the one and heard with the other."""
    silent = dict.fromkeys((executor_id for model in models for executor_id in model.registry.silent()), 0)
    heard = {executor.info.executor_id: 1 for executor in _live(models)}
    return ((up, {"executor_id": executor_id}) for executor_id, up in (silent | heard).items())


def _block_owners(models: Models) -> Readings:
    for executor in _live(models):
        owners = executor.heartbeat.blocks
        for owner in tables.BLOCK_OWNERS:
            yield getattr(owners, owner), _id_of(executor) | {"owner": owner}


def _observe_stack(registry: CollectorRegistry, hub: DashboardHub) -> None:
    batches = hub.batch_counts
    tables.BUDGET.observe(registry, lambda: _budgets(hub))
    tables.TOLERANCE.observe(
        registry,
        lambda: [
            (record.tolerance, {"profile_key": key})
            for key, record in hub.live_budgets().items()
            if record.tolerance is not None
        ],
    )
    tables.SLO_KEPT.observe(
        registry, lambda: _slos(hub, lambda each: each.met if None not in (each.bound_ms, each.value_ms) else None)
    )
    tables.SLO_BOUND.observe(registry, lambda: _slos(hub, lambda each: _seconds(each.bound_ms)))
    tables.SLO_MEASURED.observe(registry, lambda: _slos(hub, lambda each: _seconds(each.value_ms)))
    tables.BATCHES.observe(registry, lambda: [(num, {"status": status}) for status, num in batches.open.items()])
    tables.BATCHES_ENDED.observe(registry, lambda: [(num, {"status": each}) for each, num in batches.ended.items()])
    tables.BATCHES_BROKEN.observe(registry, lambda: [(batches.broken, {})])
    tables.LINES_LEFT.observe(registry, lambda: [(hub.lines_left(), {})])
    tables.LINES.observe(registry, lambda: [(num, {"result": each}) for each, num in batches.lines.items()])
    tables.SERVICE_UP.observe(registry, lambda: [(up, {"service": name}) for name, up in hub.answers.up.items()])
    tables.RESTARTS.observe(registry, lambda: [(num, {"service": each}) for each, num in hub.answers.restarts.items()])


def _budgets(hub: DashboardHub) -> Readings:
    """None of kinds that hold a tolerance in its place."""
    for key, record in hub.live_budgets().items():
        if record.tolerance is None:
            yield record.latency_budget_ms / 1e3, {"profile_key": key, "source": record.source.value}


def _slos(hub: DashboardHub, read: Callable[[SloVerdict], float | None]) -> Readings:
    for key, status in hub.live_slos().items():
        for verdict in status.measured:
            value = read(verdict)
            if value is not None:
                yield value, {"profile_key": key, "slo": verdict.expr}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3
