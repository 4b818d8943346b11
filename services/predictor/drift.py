"""Seeing that a machine no longer does what its model says. Pure: errors in, alarms out."""

import math
from dataclasses import dataclass

ALLOWED = 0.05  # a lasting error that is no drift: no model is right about every shape
ALLOWED_SIGMAS = 1.5
ALARM = 3.0  # a factor of 1.1 gets there in 66 steps
ALARM_SIGMAS = 16.0
FEWEST = 24  # steps that make a drift, however much longer they take: a stall of a second is none
SIGMA_PER_MEAN_DEVIATION = math.sqrt(math.pi / 2)  # of a normal distribution
FORGETTING = 1 / 128  # of a change of the model, for each sample


@dataclass(frozen=True, slots=True)
class Drift:
    """``ratio``: measured over predicted time since the drift began, with the sample of the number ``first``."""

    ratio: float
    first: int


class DriftDetector:
    """Two CUSUM tests (Page, 1954) on the logarithm of measured over predicted time, one for slower and one for faster.

    Each sums up what the errors exceed the allowed one by, and begins anew where the sum falls to 0; an alarm is a sum
    beyond a limit, of which no error counts more than its share of FEWEST. Both grow with the spread of the errors that
    the model itself has, so that noise alone stays silent.

    A model that is published anew follows the machine before the test has seen enough, so what it changed counts as an
    error for a while: the test is about the machine, not about the newest model.
    """

    def __init__(self, mean_error: float) -> None:
        """``mean_error``: the mean absolute relative error to expect, 0 to 1: the model's own on held-out samples, or
        the noise floor, whichever is larger."""
        sigma = SIGMA_PER_MEAN_DEVIATION * mean_error
        self._alarm = max(ALARM, ALARM_SIGMAS * sigma)
        self._allowed = max(ALLOWED, ALLOWED_SIGMAS * sigma)
        self._most = self._alarm / FEWEST
        self._slower, self._faster = _Side(), _Side()
        self._change = 0.0

    def follow(self, ratio: float) -> None:
        """Another model is published, which predicts ``ratio`` times as long for what runs. What error to expect stays:
        that of a model fitted while the machine changes is larger."""
        self._change += math.log(ratio)

    def add(self, number: int, measured_ms: float, predicted_ms: float) -> Drift | None:
        """Both positive, of the sample of this number; numbers rise. After an alarm the test has no memory of what came
        before."""
        error = math.log(measured_ms / predicted_ms) + self._change
        self._change *= 1 - FORGETTING
        self._slower.add(number, self._counted(error), error)
        self._faster.add(number, self._counted(-error), error)
        for side in (self._slower, self._faster):
            if side.total > self._alarm:
                self._slower, self._faster = _Side(), _Side()
                return Drift(math.exp(side.errors / side.length), side.first)
        return None

    def _counted(self, error: float) -> float:
        return max(-self._most, min(error - self._allowed, self._most))


@dataclass(slots=True)
class _Side:
    """One of the two tests."""

    total: float = 0.0
    errors: float = 0.0  # of the logarithms, since the total last was 0
    length: int = 0
    first: int = 0  # sample since then

    def add(self, number: int, exceeding: float, error: float) -> None:
        if self.total + exceeding <= 0:
            self.total, self.errors, self.length = 0.0, 0.0, 0
            return
        if not self.length:
            self.first = number
        self.total += exceeding
        self.errors += error
        self.length += 1
