"""The budgets that keep a stack's SLOs: searched for, published, corrected."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from loadgen.errors import SloError
from loadgen.report.slo import Slo, parse_slo
from services.profiler.settings import ProfilerSettings
from services.profiler.slo.job import SearchError, search_aside
from services.profiler.slo.keeper import LIVE, PublishedModel, SloKeeper, rename, why_unreachable
from services.profiler.slo.online_watch import OnlineWatch
from shared.bus import Bucket, Bus, Subscription
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.offline.requests import OfflineSample
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.protocol.profiling.online import OnlineServed
from shared.protocol.profiling.slo_profile import Knob, ProfileReply, ProfileRequest, SloProfileRecord, slo_profile_key

logger = logging.getLogger(__name__)

TICK_S = 1.0
SAMPLE_WAIT_S = 2.0


class SloBudgets:
    """One keeper for each kind of executor. Without SLOs it keeps none, but may be asked to search for some."""

    def __init__(self, bus: Bus, settings: ProfilerSettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._all_slos = settings.all_slos()
        self._clock = clock
        self._keepers: dict[str, SloKeeper] = {}  # by profile key
        self._keys: dict[str, str] = {}  # executor -> profile key
        self._latency_models: dict[str, PublishedModel] = {}
        self._published: dict[str, BudgetRecord] = {}  # by profile key, as it is in the bucket
        self._held: set[str] = set()  # profile keys whose budget a live search sets now
        self._searching = asyncio.Lock()  # one at a time: they take a core each
        self._subscriptions: list[Subscription] = []
        self._models: Bucket[LatencyModelRecord]
        self._budgets: Bucket[BudgetRecord]
        self._profiles: Bucket[SloProfileRecord]

    async def start(self) -> None:
        """Open the buckets; hear what gateways and executors tell, and who asks."""
        self._models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        self._budgets = await self._bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        self._profiles = await self._bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        self._subscriptions = [
            await self._bus.subscribe(subjects.ONLINE_SERVED, OnlineServed, self._on_served),
            await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat),
            await self._bus.serve(subjects.PROFILE, ProfileRequest, self._on_profile_request),
            await self._bus.serve(subjects.SLO_STATUS, object, self._on_status_request),
        ]

    async def run(self) -> None:
        """Until cancelled; a search that runs is killed then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_models())
            if self._all_slos:
                group.create_task(self._budgets.follow(self._on_budget))
                group.create_task(self._profiles.follow(self._on_profile))
                group.create_task(self._keep(group))

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            await subscription.stop()

    async def admit(self, info: ExecutorInfo) -> None:
        """An executor is ready: its kind gets a budget, of an earlier search for these SLOs if any. Raises BusError."""
        self._keys[info.executor_id] = info.profile_key
        keeper = self._keepers.get(info.profile_key)
        if keeper is not None:
            keeper.info = info
            _warn(keeper)
            self._published.pop(info.profile_key, None)  # the bus may have lost its store
            await self._publish(keeper)
            return
        record, slos = None, self._settings.slos_of(info.spec.model)
        keeper = SloKeeper(info, slos, self._settings, self._clock.monotonic_s(), self._clock.unix_s())
        with suppress(NotFoundOnBusError):
            record = (await self._profiles.get(_key(keeper))).value if slos else None
        keeper.model = self._latency_models.get(info.profile_key)
        if record is not None:
            keeper.on_found(rename(record, slos), self._clock.monotonic_s())
        self._keepers[info.profile_key] = keeper
        _warn(keeper)
        await self._publish(keeper)

    def details(self) -> Details:
        """Nothing where the stack keeps no SLOs."""
        if not self._all_slos:
            return {}
        report = self._report()
        return {
            "slos": ", ".join(report.slos),
            "slo_states": ", ".join(f"{status.profile_key}: {status.state}" for status in report.executors),
        }

    async def _keep(self, group: asyncio.TaskGroup) -> None:
        while True:
            for keeper in list(self._keepers.values()):
                await self._tick(keeper, group)
                check_cancelled()
            await asyncio.sleep(TICK_S)

    async def _tick(self, keeper: SloKeeper, group: asyncio.TaskGroup) -> None:
        if not keeper.slos or keeper.info.profile_key in self._held:
            keeper.online.take()  # under a budget that is not ours
            return
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        keeper.correct(now_s)
        try:
            await self._publish(keeper)
        except BusError as error:
            logger.warning("budget not published", extra=_ids(keeper, error))
        why = keeper.search_because(now_s, unix_s)
        if why:
            keeper.is_searching = True
            group.create_task(self._search_because(keeper, why))

    async def _search_because(self, keeper: SloKeeper, why: str) -> None:
        try:
            await self._search(keeper, keeper.slos, why)
        except (SearchError, BusError) as error:
            keeper.on_failed(str(error))
            logger.warning("no budget found", extra=_ids(keeper, error))
        finally:
            keeper.is_searching = False

    async def _search(self, keeper: SloKeeper, slos: Sequence[Slo], why: str) -> SloProfileRecord:
        """Publish the record, and where the SLOs are its own the budget. Raises SearchError and BusError."""
        async with self._searching:
            await self._ask_offline_lengths(keeper)
            job = keeper.job([slo.expr for slo in slos], self._clock.unix_s(), why)
            if job is None:
                raise SearchError(
                    f"no latency model, or no online requests recorded yet, for {keeper.info.profile_key}"
                )
            logger.info("search started", extra={**_ids(keeper), "why": why, "requests": len(job.requests)})
            start_s = self._clock.monotonic_s()
            record = await search_aside(job)
            now_s = self._clock.monotonic_s()
            key = slo_profile_key(record.profile_key, record.slos, record.knob)
            await self._profiles.put(key, record)
            if keeper.slos and key == _key(keeper):
                keeper.on_found(rename(record, keeper.slos), now_s, job.model, took_s=now_s - start_s)
                await self._publish(keeper)
        if record.value is None:
            logger.warning("SLOs cannot be kept", extra={**_ids(keeper), "why": why_unreachable(record)})
        return record

    async def _ask_offline_lengths(self, keeper: SloKeeper) -> None:
        try:
            subject = subjects.of_model(keeper.info.spec.model).sample
            sample = await self._bus.request(subject, {}, OfflineSample, SAMPLE_WAIT_S)
        except BusError as error:
            logger.info("offline lengths not known", extra=_ids(keeper, error))
        else:
            keeper.on_offline(sample.lengths)

    async def _publish(self, keeper: SloKeeper) -> None:
        holds_one = keeper.info.strategy.uses_latency_budget
        if not keeper.slos or not holds_one or keeper.info.profile_key in self._held:
            return
        budget = keeper.budget()
        if self._published.get(budget.profile_key) == budget:
            return
        await self._budgets.put(budget.profile_key, budget)
        self._published[budget.profile_key] = budget
        figures = {"latency_budget_ms": budget.latency_budget_ms, "source": budget.source}
        logger.info("budget published", extra={**_ids(keeper), **figures})

    def _on_budget(self, profile_key: str, budget: BudgetRecord | None) -> None:
        """A search by live runs has the budget to itself; what others put there is replaced by ours."""
        if budget is None:
            self._published.pop(profile_key, None)
        else:
            self._published[profile_key] = budget
        if budget is not None and budget.source is BudgetSource.PROFILING:
            self._held.add(profile_key)
        else:
            self._held.discard(profile_key)

    def _on_profile(self, key: str, record: SloProfileRecord | None) -> None:
        """What a search by live runs found for our SLOs is ours; what it sent is no workload of the stack's."""
        keeper = None if record is None or record.runs_on != LIVE else self._keepers.get(record.profile_key)
        if keeper and record and keeper.record != record and key == _key(keeper):
            keeper.online = OnlineWatch(self._clock.unix_s())
            keeper.on_found(rename(record, keeper.slos), self._clock.monotonic_s())

    async def _follow_models(self) -> None:
        async for entry in self._models.watch():
            if entry is None or entry.value is None:
                continue
            try:
                entry.value.latency_model()
            except ValueError as error:
                logger.warning("ignored a latency model", extra={"profile_key": entry.key, "why": str(error)})
                continue
            fitted = self._latency_models[entry.key] = PublishedModel(entry.value, entry.revision)
            if entry.key in self._keepers:
                self._keepers[entry.key].model = fitted

    async def _on_served(self, served: OnlineServed) -> None:
        keeper = self._keepers.get(self._keys.get(served.executor_id, ""))
        if keeper is not None:
            keeper.online.on_served(self._clock.monotonic_s(), served)

    async def _on_heartbeat(self, beat: Heartbeat) -> None:
        keeper = self._keepers.get(beat.info.profile_key)
        if keeper is not None:
            keeper.online.on_heartbeat(self._clock.monotonic_s(), beat)

    async def _on_status_request(self, _: object) -> SloReport:
        return self._report()

    def _report(self) -> SloReport:
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        keepers = [keeper for _, keeper in sorted(self._keepers.items()) if keeper.slos]
        return SloReport(self._all_slos, [keeper.status(now_s, unix_s) for keeper in keepers])

    async def _on_profile_request(self, request: ProfileRequest) -> ProfileReply:
        try:
            asked = [parse_slo(expr) for expr in request.slos]
            keys = [request.profile_key] if request.profile_key else sorted(self._keepers)
            keepers = [self._keepers[key] for key in keys if key in self._keepers]
            if not keepers:
                known = ", ".join(sorted(self._keepers)) or "none"
                raise SearchError(f"no executor of kind {request.profile_key or 'any'}; known: {known}")
            searches = [(keeper, slos) for keeper in keepers if (slos := asked or keeper.slos)]
            if not searches:
                raise SearchError("the stack keeps no SLOs: name some")
            return ProfileReply([await self._search(keeper, slos, "asked") for keeper, slos in searches])
        except (SloError, SearchError, BusError) as error:
            return ProfileReply([], str(error))


def _key(keeper: SloKeeper) -> str:
    return slo_profile_key(keeper.info.profile_key, (slo.expr for slo in keeper.slos), Knob.BUDGET_MS)


def _warn(keeper: SloKeeper) -> None:
    if keeper.ignored:
        logger.warning(keeper.ignored, extra=_ids(keeper))


def _ids(keeper: SloKeeper, error: Exception | None = None) -> dict[str, str]:
    ids = {"profile_key": keeper.info.profile_key}
    return ids if error is None else {**ids, "error": str(error)}
