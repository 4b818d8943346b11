"""The profiler's life: watch executors register, sweep each kind once, and give it a budget."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import cast

from services.profiler.settings import ProfilerSettings
from services.profiler.slo.budgets import SloBudgets
from services.profiler.slo.holds import LiveHolds
from services.profiler.sweep.load_watch import LoadWatch
from services.profiler.sweep.progress import SweepProgress, SweepState
from services.profiler.sweep.sweep import (
    ExecutorBusyError,
    ExecutorSilentError,
    NothingMeasuredError,
    Sweep,
    publish_samples,
)
from services.profiler.sweep.sweep_record import SweepFiles, SweepRecord
from shared.bus import Bucket, Bus, Entry, Subscription
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, ConfigError, NotFoundOnBusError
from shared.process.service import Details, Service
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.latency_models import LatencyModelRecord

logger = logging.getLogger(__name__)

MAX_QUEUED = 256  # registrations; beyond it the watch of the bucket waits
FIRST_CONFIRM_S = 10.0
LAST_CONFIRM_S = 60.0
RETRY_S = 5.0  # after an error of the bus


class Profiler(Service):
    """One sweep at a time, since executors on one machine disturb each other's measurements."""

    name = "profiler"

    def __init__(
        self, bus: Bus, settings: ProfilerSettings, clock: Clock, first_confirm_s: float = FIRST_CONFIRM_S
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._first_confirm_s = first_confirm_s
        self._files = SweepFiles(settings.profiles_dir())
        self._load = LoadWatch(bus)
        self._slo_budgets = SloBudgets(bus, settings, clock)
        self._progress = SweepProgress()
        self._registered: asyncio.Queue[ExecutorInfo] = asyncio.Queue(MAX_QUEUED)
        self._measured: dict[str, tuple[ExecutorInfo, SweepRecord]] = {}  # measured or replayed here; one of each kind
        self._confirming: set[str] = set()  # profile keys
        self._executors: Bucket[ExecutorInfo]
        self._models: Bucket[LatencyModelRecord]
        self._budgets: Bucket[BudgetRecord]
        self._wanted: Subscription

    async def start(self) -> None:
        """Open the buckets and hear the heartbeats."""
        self._executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        self._models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        self._budgets = await self._bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        await self._load.start()
        await self._slo_budgets.start()
        self._wanted = await self._bus.subscribe(subjects.SAMPLES_WANTED, object, self._on_samples_wanted)

    async def run(self) -> None:
        """Until cancelled; a registration that comes again is served again, at little cost."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_executors())
            group.create_task(self._slo_budgets.run())
            group.create_task(LiveHolds(self._bus, self._budgets).run())
            while True:
                info = await self._registered.get()
                reconnects = self._bus.reconnects
                try:
                    await self._serve(info, group)
                except BusError as error:
                    logger.warning("profiling interrupted", extra=_ids(info, error))
                    group.create_task(self._again(info, reconnects))
                check_cancelled()

    async def stop(self) -> None:
        """An unfinished sweep starts anew with the next process."""
        await self._wanted.stop()
        await self._slo_budgets.stop()
        await self._load.stop()

    def details(self) -> Details:
        return self._progress.details() | self._slo_budgets.details()

    async def _watch_executors(self) -> None:
        async for entry in self._executors.watch():
            if entry is not None and entry.value is not None:
                await self._registered.put(entry.value)

    async def _serve(self, info: ExecutorInfo, group: asyncio.TaskGroup) -> None:
        """A sweep, a budget, and the predictor's model, for one executor."""
        try:
            record = await self._replayed(info) or await self._swept(info)
        except ConfigError as error:
            logger.error("executor not profiled", extra=_ids(info, error))
        except ExecutorSilentError as error:
            logger.warning("executor not profiled; it will be when it is heard again", extra=_ids(info, error))
            self._progress.forget(info.profile_key)
            group.create_task(self._again_when_heard(info.executor_id))
        except ExecutorBusyError as error:
            logger.warning("executor not profiled; it will be when it is idle", extra=_ids(info, error))
            await self._publish_budget(info)
            self._progress.enter(info.profile_key, SweepState.DEFERRED)
            group.create_task(self._again_when_idle(info))
        except NothingMeasuredError as error:
            logger.error("executor cannot be profiled; its own steps will tell", extra=_ids(info, error))
            await self._publish_budget(info)
            self._progress.enter(info.profile_key, SweepState.FAILED)
        else:
            self._measured[info.profile_key] = info, record
            await self._publish_budget(info)
            if info.profile_key not in self._confirming:
                self._confirming.add(info.profile_key)
                self._progress.enter(info.profile_key, SweepState.FITTING)
                group.create_task(self._confirm(info, record))

    async def _replayed(self, info: ExecutorInfo) -> SweepRecord | None:
        """The record of an earlier sweep that covers this executor; its samples are sent once."""
        _, record = self._measured.get(info.profile_key, (info, None))
        if record is not None and record.covers(info):
            return record
        if self._settings.refresh:
            return None
        record = await asyncio.to_thread(self._files.load, info.profile_key)
        if record is None or not record.covers(info):
            return None
        await publish_samples(self._bus, info, record.measurements)
        logger.info("cached sweep used", extra=_ids(info))
        return record

    async def _swept(self, info: ExecutorInfo) -> SweepRecord:
        profile_key = info.profile_key
        self._files.path(profile_key)  # a key that cannot be stored is not measured
        self._progress.enter(profile_key, SweepState.SWEEPING)
        on_progress = partial(self._progress.count, profile_key)
        sweep = Sweep(self._bus, self._load, self._clock, info, on_progress)
        record = SweepRecord.of(info, await sweep.run(), self._clock.unix_s())
        if sweep.is_cut:
            logger.info("sweep not cached: the executor had work", extra=_ids(info))
        else:
            await asyncio.to_thread(self._files.store, record)
        return record

    async def _again(self, info: ExecutorInfo, reconnects: int) -> None:
        """Once the bus is there again, or soon, where it was."""
        await self._bus.wait_reconnected(reconnects, RETRY_S)
        await self._registered.put(info)

    async def _again_when_heard(self, executor_id: str) -> None:
        """As what it says that it is by then."""
        await self._registered.put(await self._load.heard(executor_id))

    async def _again_when_idle(self, info: ExecutorInfo) -> None:
        await self._load.wait_idle(info.executor_id)
        await self._registered.put(info)

    async def _confirm(self, info: ExecutorInfo, record: SweepRecord) -> None:
        """Send the samples again until the predictor has made a model of them: it may have started later.
        The sweep counts as done after the first wait: a predictor in trouble shows in its own health."""
        timeout_s = self._first_confirm_s
        while not await self._model_appears(info.profile_key, timeout_s):
            self._progress.enter(info.profile_key, SweepState.DONE)
            logger.warning("no latency model came of the samples, sending them again", extra=_ids(info))
            await self._send_again(info, record)
            check_cancelled()
            timeout_s = min(2 * timeout_s, LAST_CONFIRM_S)
        self._confirming.discard(info.profile_key)
        self._progress.enter(info.profile_key, SweepState.DONE)
        logger.info("sweep done", extra=_ids(info))

    async def _on_samples_wanted(self, _: object) -> None:
        for info, record in list(self._measured.values()):
            await self._send_again(info, record)

    async def _send_again(self, info: ExecutorInfo, record: SweepRecord) -> None:
        try:
            await publish_samples(self._bus, info, record.measurements)
        except BusError as error:
            logger.warning("samples not sent", extra=_ids(info, error))

    async def _model_appears(self, profile_key: str, timeout_s: float) -> bool:
        models = cast(AsyncGenerator[Entry[LatencyModelRecord] | None, None], self._models.watch())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), aclosing(models):
                async for entry in models:
                    if entry is not None and entry.key == profile_key and entry.value is not None:
                        return True
        return False

    async def _publish_budget(self, info: ExecutorInfo) -> None:
        await self._slo_budgets.admit(info)
        profile_key, strategy = info.profile_key, info.strategy
        if not strategy.uses_latency_budget:
            await self._budgets.delete(profile_key)  # of a strategy before
            return
        if self._settings.slos_of(info.spec.model):
            return
        fixed_ms, tolerance = strategy.budget_ms, None if strategy.budget_ms else strategy.tolerance
        source = BudgetSource.FIXED if fixed_ms else BudgetSource.TOLERANCE
        budget = BudgetRecord(profile_key, fixed_ms, source, strategy.idle_budget_ms, tolerance)
        with suppress(NotFoundOnBusError):
            published = (await self._budgets.get(profile_key)).value
            if published is not None and published.without_live_searches == budget:
                return
        await self._budgets.put(profile_key, budget)
        figures = {"latency_budget_ms": fixed_ms, "tolerance": tolerance}
        logger.info("budget published", extra={"profile_key": profile_key, **figures})


def _ids(info: ExecutorInfo, error: Exception | None = None) -> dict[str, str]:
    ids = {"executor_id": info.executor_id, "profile_key": info.profile_key}
    return ids if error is None else {**ids, "error": str(error)}
