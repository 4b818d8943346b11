"""What the predictor knows about one profile key."""

import math

from services.predictor.drift import Drift, DriftDetector
from services.predictor.fit import total_ms
from services.predictor.window import SampleWindow
from shared.latency.features import BatchFeatures
from shared.latency.linear import Coefficients
from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.latency_models import FittedModel, LatencyModelRecord, LinearCoefficients

RECENT_SAMPLES = 128  # whose total a model must get right


class WatchedKind:
    """Its newest samples, the published model, and whether the two still agree."""

    def __init__(self, window: int) -> None:
        self.window = SampleWindow(window)
        self.has_news = False  # samples that no fit has seen
        self.drifts = 0
        self.drift_ratio: float | None = None  # of the last one
        self.drifted_at_s: float | None = None
        self.has_drifted = False  # and no model was published since
        self.record: LatencyModelRecord | None = None
        self.revision = 0
        self.model: FittedModel | None = None
        self.spec: EngineSpec | None = None  # of its executors, the newest that is known
        self.heard_s = -math.inf  # monotonic, of its last sample
        self._detector: DriftDetector | None = None
        self._goes_by_sweeps = True  # nothing else is known of the machine

    def publish(self, record: LatencyModelRecord | None, revision: int) -> None:
        """Take over what stands on the bus; None where nothing does. Raises ValueError for a record of no model."""
        if record == self.record:
            self.revision = revision
            return
        model = record.latency_model() if record else None
        self._goes_by_sweeps &= len(self.window) > 0  # else it is of an earlier life
        self._detector = self._detector_for(record, model) if record and model else None
        self.record, self.revision, self.model = record, revision, model
        if record is not None and record.drifts > self.drifts:  # of an earlier life
            self.drifts, self.drift_ratio = record.drifts, record.drift_ratio
            self.drifted_at_s = record.drifted_at_s

    def add(self, shape: BatchFeatures, latency_ms: float, is_live: bool) -> bool:
        """False for a sample that says nothing. Of a sweep, where live steps or an earlier model have told of the
        machine, none is news by itself: it may be told again long after that has changed."""
        is_kept = self.window.add(shape, latency_ms, is_live)
        self._goes_by_sweeps &= not is_live
        self.has_news |= is_kept and (is_live or self.record is None or self._goes_by_sweeps)
        return is_kept

    def forget_samples(self) -> None:
        """Nothing can be made of them."""
        self.window.clear()

    def watch(self, shape: BatchFeatures, latency_ms: float, now_s: float) -> Drift | None:
        """Compare the sample that was added last with the published model. After an alarm all samples but those since
        the drift began are taken to have drifted too."""
        if self._detector is None or self.model is None or self.has_drifted:
            return None
        predicted_ms = self.model.predict_ms(shape)
        number = self.window.num_added - 1
        drift = self._detector.add(number, latency_ms, predicted_ms) if predicted_ms > 0 else None
        if drift is not None:
            self.window.rescale(drift.first, drift.ratio)
            self.drifts += 1
            self.drift_ratio, self.drifted_at_s, self.has_drifted = drift.ratio, now_s, True
        return drift

    def _detector_for(self, record: LatencyModelRecord, model: FittedModel) -> DriftDetector:
        """The one that is at work; a new one for a first model and for one that was made because of a drift."""
        if self._detector is None or self.model is None or self.has_drifted:
            return DriftDetector(max(record.mape, record.noise_floor or 0.0))
        recent = self.window.recent(RECENT_SAMPLES)
        before_ms, now_ms = total_ms(self.model, recent), total_ms(model, recent)
        if before_ms > 0 and now_ms > 0:
            self._detector.follow(now_ms / before_ms)
        return self._detector

    @property
    def prior(self) -> Coefficients | None:
        """What a linear fit starts from."""
        if self.record is None:
            return None
        model = self.record.model
        return model.coefficients if isinstance(model, LinearCoefficients) else self.record.linear_fit
