"""The predictor's life: collect samples, refit when new ones came, publish what is materially better."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from services.predictor.fit import LinearFit, calibrated, fit_linear, is_material
from services.predictor.settings import PredictorSettings
from services.predictor.window import SampleWindow
from shared.bus import Bucket, Bus, Subscription
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.messages import LatencyModelRecord, LatencySample
from shared.service import Details

logger = logging.getLogger(__name__)

RECENT_SAMPLES = 128  # whose total a model must get right


class Predictor:
    """Watches every executor's samples; LATENCY_MODELS_BUCKET holds the outcome, one record per profile key."""

    name = "predictor"

    def __init__(self, bus: Bus, settings: PredictorSettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._profiles: dict[str, _Profile] = {}
        self._arrived = asyncio.Event()
        self._counts = _Counts()
        self._models: Bucket[LatencyModelRecord] | None = None
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Read what earlier runs published, then listen."""
        self._models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        try:
            for entry in await self._models.entries():
                self._profile(entry.key).record = entry.value
        except msgspec.DecodeError as error:
            logger.warning("a published model does not parse; the next fit replaces it", extra={"error": str(error)})
        self._subscription = await self._bus.subscribe(subjects.LATENCY_SAMPLES, LatencySample, self._on_sample)

    async def run(self) -> None:
        """Refit each profile that gained samples, in rounds at least ``refit_interval_s`` apart."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            round_started_s = self._clock.monotonic_s()
            for profile_key, profile in list(self._profiles.items()):
                if self._is_due(profile):
                    await self._refit(profile_key, profile)
            elapsed_s = self._clock.monotonic_s() - round_started_s
            await asyncio.sleep(max(0.0, self._settings.refit_interval_s - elapsed_s))  # bounds the rate of fitting

    async def stop(self) -> None:
        """Nothing is lost: what was published stays, and samples come again."""
        if self._subscription is not None:
            await self._subscription.stop()

    def health(self) -> str:
        return "ok"

    def details(self) -> Details:
        """Totals over all profiles; ``worst_mape`` is that of the published models."""
        records = [profile.record for profile in self._profiles.values() if profile.record is not None]
        return {
            "profiles": len(self._profiles),
            "models": len(records),
            "worst_mape": max((record.mape for record in records), default=None),
            "samples_in_window": sum(len(profile.window) for profile in self._profiles.values()),
            "samples": self._counts.samples,
            "samples_refused": self._counts.samples_refused,
            "fits": self._counts.fits,
            "published": self._counts.published,
        }

    async def _on_sample(self, sample: LatencySample) -> None:
        profile = self._profile(sample.profile_key)
        if not profile.window.add(sample.shape, sample.latency_ms):
            self._counts.samples_refused += 1
            return
        self._counts.samples += 1
        profile.has_news = True
        if self._is_due(profile):
            self._arrived.set()

    async def _refit(self, profile_key: str, profile: _Profile) -> None:
        assert self._models is not None
        profile.has_news = False
        observations = profile.window.observations()
        try:
            profile.record = await _current(self._models, profile_key)
            prior = profile.record.coefficients if profile.record else None
            fitted = await asyncio.to_thread(fit_linear, observations, prior)
            self._counts.fits += 1
            if fitted is None:
                return
            recent = profile.window.recent(RECENT_SAMPLES)
            fitted = calibrated(fitted, recent)
            if prior is not None and not is_material(fitted, prior, observations, recent):
                return
            record = _record(profile_key, fitted, self._clock.unix_s())
            await self._models.put(profile_key, record)
        except BusError as error:
            profile.has_news = True
            self._arrived.set()  # tries again in the next round
            logger.warning("model not published", extra={"profile_key": profile_key, "error": str(error)})
            return
        profile.record = record
        self._counts.published += 1
        logger.info(
            "model published",
            extra={"profile_key": profile_key, "num_samples": record.num_samples, "mape": round(record.mape, 4)},
        )

    def _is_due(self, profile: _Profile) -> bool:
        return profile.has_news and len(profile.window) >= self._settings.min_samples

    def _profile(self, profile_key: str) -> _Profile:
        if profile_key not in self._profiles:
            self._profiles[profile_key] = _Profile(SampleWindow(self._settings.window))
        return self._profiles[profile_key]


@dataclass(slots=True)
class _Profile:
    window: SampleWindow
    record: LatencyModelRecord | None = None  # as last read or published
    has_news: bool = False


@dataclass(slots=True)
class _Counts:
    samples: int = 0
    samples_refused: int = 0
    fits: int = 0
    published: int = 0


async def _current(models: Bucket[LatencyModelRecord], profile_key: str) -> LatencyModelRecord | None:
    """Read anew for each fit, since the bus may have lost its store, or another predictor may have written."""
    try:
        return (await models.get(profile_key)).value
    except (NotFoundOnBusError, msgspec.DecodeError):
        return None


def _record(profile_key: str, fitted: LinearFit, now_s: float) -> LatencyModelRecord:
    return LatencyModelRecord(profile_key, fitted.coefficients, fitted.num_samples, fitted.mape, now_s)
