"""The predictor's life: collect samples, refit when new ones came, publish what is materially better, and see drift."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress

import msgspec

from services.predictor.answers import answer
from services.predictor.fit import refit
from services.predictor.settings import PredictorSettings
from services.predictor.watched_kind import RECENT_SAMPLES, WatchedKind
from shared.bus import Bucket, Bus, Entry, Subscription
from shared.cancellation import check_cancelled, wait_set
from shared.clock import Clock
from shared.errors import BusError
from shared.process.service import Details, Service
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.profiling.latency_models import LatencyModelRecord, PredictBatch, Prediction, model_record
from shared.protocol.profiling.measurements import LatencySample

logger = logging.getLogger(__name__)

SETTLED_SHARE, CHANGING_SHARE = 0.01, 0.1  # of a core that fits may take, while models stay as they are and while not
RETRY_S = 1.0  # after an error of the bus
MAX_KINDS = 256  # of executors; samples and models of others are refused,
FORGOTTEN_S = 3600.0  # unless nothing was heard for so long of one of these: it gives up its place


class Predictor(Service):
    """Watches every executor's samples; LATENCY_MODELS_BUCKET holds the outcome, one record per kind of executor."""

    name = "predictor"

    def __init__(self, bus: Bus, settings: PredictorSettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._kinds: dict[str, WatchedKind] = {}
        self._arrived = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._models: Bucket[LatencyModelRecord]
        self._executors: Bucket[ExecutorInfo]
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Read what earlier runs published, then listen, first of all to what was measured before."""
        self._models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        for entry in await self._models.entries():
            self._take_over(entry)
        self._executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        self._subscriptions = [
            await self._bus.subscribe(subjects.LATENCY_SAMPLES, LatencySample, self._on_sample),
            await self._bus.serve(subjects.PREDICT, PredictBatch, self._on_question, queue=self.name),
        ]
        await self._bus.publish(subjects.SAMPLES_WANTED, {})

    async def run(self) -> None:
        """Fit, and keep what was published."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refit_in_rounds())
            group.create_task(self._follow_models())

    async def _refit_in_rounds(self) -> None:
        """Each kind that gained samples, in rounds at least ``refit_interval_s`` apart; a kind that drifted, or has no
        model yet, waits no longer than that."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            round_started_s, is_settled = self._clock.monotonic_s(), True
            for profile_key, kind in list(self._kinds.items()):
                if self._is_due(kind):
                    is_settled &= await self._refit(profile_key, kind)
                    check_cancelled()
            elapsed_s = self._clock.monotonic_s() - round_started_s
            await asyncio.sleep(max(0.0, self._settings.refit_interval_s - elapsed_s))  # bounds the rate of fitting
            await wait_set(self._is_urgent, elapsed_s / (SETTLED_SHARE if is_settled else CHANGING_SHARE))
            self._is_urgent.clear()

    async def stop(self) -> None:
        """Nothing is lost: what was published stays, and samples come again."""
        for subscription in self._subscriptions:
            await subscription.stop()

    def details(self) -> Details:
        """Totals over all kinds; ``worst_mape`` is that of the published models, ``drift_ratio`` and
        ``drifted_at_s`` are those of the last drift of any."""
        kinds = self._kinds.values()
        records = [kind.record for kind in kinds if kind.record is not None]
        drifted = [(each.drifted_at_s, each.drift_ratio) for each in kinds if each.drifted_at_s is not None]
        drifted_at_s, drift_ratio = max(drifted, key=lambda pair: pair[0], default=(None, None))
        return {
            "profiles": len(self._kinds),
            "models": len(records),
            **{name: sum(record.kind == name for record in records) for name in ("boosted", "roofline")},
            "worst_mape": max((record.mape for record in records), default=None),
            "samples_in_window": sum(len(kind.window) for kind in kinds),
            **{name: self._counts[name] for name in ("samples", "samples_refused", "fits", "published")},
            "drifts": sum(kind.drifts for kind in kinds),
            "drift_ratio": drift_ratio,
            "drifted_at_s": drifted_at_s,
        }

    async def _follow_models(self) -> None:
        """Another predictor may write them. One that the bus has lost is published again: without it offline work may
        wait, and then no samples come of which another could be made."""
        async for entry in self._models.watch():
            if entry is not None and entry.value is not None:
                self._take_over(entry)
            elif entry is not None:
                await self._publish_again(entry.key)

    def _take_over(self, entry: Entry[LatencyModelRecord]) -> None:
        kind = self._kind(entry.key)
        if kind is not None:
            self._publish_to(kind, entry)

    def _publish_to(self, kind: WatchedKind, entry: Entry[LatencyModelRecord]) -> None:
        try:
            kind.publish(entry.value, entry.revision)
        except ValueError as error:
            why = {"profile_key": entry.key, "error": str(error)}
            logger.warning("a published model is none; the next fit replaces it", extra=why)

    async def _publish_again(self, profile_key: str) -> None:
        """Unless there is one that another version has written."""
        kind = self._kinds.get(profile_key)
        while kind is not None and kind.record is not None:
            try:
                if not await self._models.has(profile_key):
                    kind.publish(kind.record, await self._models.put(profile_key, kind.record))
                    logger.warning(
                        "a model that the bus has lost is published again", extra={"profile_key": profile_key}
                    )
                return
            except BusError as error:
                logger.warning("model not published", extra={"profile_key": profile_key, "error": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _on_sample(self, sample: LatencySample) -> None:
        kind, is_live = await self._heard(sample.profile_key), sample.step > 0
        if kind is None or not kind.add(sample.shape, sample.latency_ms, is_live):
            self._counts["samples_refused"] += 1
            return
        self._counts["samples"] += 1
        if is_live:  # a sweep's shapes are all that may come, not what does
            drift = kind.watch(sample.shape, sample.latency_ms, self._clock.unix_s())
            if drift is not None:
                self._is_urgent.set()
                ids = {"profile_key": sample.profile_key, "executor_id": sample.executor_id}
                logger.warning("steps drifted from the model", extra={**ids, "ratio": round(drift.ratio, 3)})
        if self._is_due(kind):
            self._arrived.set()
            if kind.record is None:  # its executors plan without one
                self._is_urgent.set()

    async def _on_question(self, asked: PredictBatch) -> Prediction:
        try:
            executors = [entry.value for entry in await self._executors.entries() if entry.value is not None]
        except (BusError, msgspec.DecodeError) as error:
            return Prediction(error=f"the executors cannot be read: {error}")
        return answer(asked, self._kinds, executors)

    async def _refit(self, profile_key: str, kind: WatchedKind) -> bool:
        """Whether what is known is good enough: no model was to be published."""
        kind.has_news = False
        try:
            record = await self._fitted(profile_key, kind)
            if record is None:
                return True
            revision = await self._models.put(profile_key, record)
        except BusError as error:
            kind.has_news = True
            self._arrived.set()  # tries again in the next round
            logger.warning("model not published", extra={"profile_key": profile_key, "error": str(error)})
            return False
        except Exception as error:  # of the fit: samples can be anything
            kind.forget_samples()
            why = {"profile_key": profile_key, "why": repr(error)}
            logger.warning("no model can be made of the samples, others are waited for", extra=why)
            return True
        kind.publish(record, revision)
        kind.has_drifted = kind.drifts > record.drifts  # since the samples were taken
        self._counts["published"] += 1
        facts = {"kind": record.kind, "num_samples": record.num_samples, "mape": round(record.mape, 4)}
        logger.info("model published", extra={"profile_key": profile_key, **facts})
        return False

    async def _fitted(self, profile_key: str, kind: WatchedKind) -> LatencyModelRecord | None:
        """What is worth publishing. All of the kind is taken at once, since samples come while the fit runs."""
        drift = (kind.drifts, kind.drift_ratio, kind.drifted_at_s)
        fitted = await asyncio.to_thread(
            refit,
            kind.window.observations(),
            kind.window.recent(RECENT_SAMPLES),
            kind.model,
            kind.prior,
            self._settings.prediction_limit_us,
            self._settings.latency_model,
            await self._spec(profile_key, kind),
            kind.has_drifted,
        )
        self._counts["fits"] += 1
        if fitted is None:
            return None
        model, candidates, now_s = model_record(fitted.model), list(fitted.candidates), self._clock.unix_s()
        quality = (fitted.num_samples, fitted.mape, now_s, fitted.noise_floor, candidates)
        return LatencyModelRecord(profile_key, model, *quality, fitted.linear, *drift)

    async def _spec(self, profile_key: str, kind: WatchedKind) -> EngineSpec | None:
        """Of the executor of the kind that registered last; it may be gone since it told its samples."""
        for entry in await self._executors.entries():
            if entry.value is not None and entry.value.profile_key == profile_key:
                kind.spec = entry.value.spec
        return kind.spec

    def _is_due(self, kind: WatchedKind) -> bool:
        return kind.has_news and len(kind.window) >= self._settings.min_samples

    async def _heard(self, profile_key: str) -> WatchedKind | None:
        """As ``_kind``, of which a sample has come; one that had given up its place knows its model again."""
        is_known, kind = profile_key in self._kinds, self._kind(profile_key)
        if kind is None:
            return None
        kind.heard_s = self._clock.monotonic_s()
        if not is_known:
            with suppress(BusError):  # as a rule it has none
                self._publish_to(kind, await self._models.get(profile_key))
        return kind

    def _kind(self, profile_key: str) -> WatchedKind | None:
        """None for one beyond MAX_KINDS."""
        if profile_key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._make_place()
        if profile_key not in self._kinds and len(self._kinds) < MAX_KINDS:
            self._kinds[profile_key] = WatchedKind(self._settings.window)
        return self._kinds.get(profile_key)

    def _make_place(self) -> None:
        """Of models, drivers and numbers of threads that were once: what the bus has of them stays there."""
        before_s = self._clock.monotonic_s() - FORGOTTEN_S
        silent = {key: kind.heard_s for key, kind in self._kinds.items() if kind.heard_s < before_s}
        if silent:
            del self._kinds[min(silent, key=silent.__getitem__)]
