"""Arrivals out of ServeGen's clients (Xiang et al., 2025): of each client, how its requests follow each other in each
window of ten minutes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gamma
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loadgen.errors import WorkloadError
from loadgen.workload.files import csv_rows

WINDOW_S = 600.0
DAY_S = 86400.0

Positive = Annotated[float, Meta(gt=0)]


class ClientWindow(msgspec.Struct, frozen=True, rename={"shape": "arg1", "scale": "arg2"}):
    """A row: times from one request of the client to its next, in seconds, are Gamma or Weibull distributed."""

    client: int
    start_s: float
    rate: Annotated[float, Meta(ge=0)]  # requests/s, over the window
    dist: Literal["Gamma", "Weibull"]
    shape: Positive
    scale: Positive

    @property
    def mean_s(self) -> float:
        """From one request to the next, as the distribution has it; the rate tells how many there were."""
        return self.scale * (self.shape if self.dist == "Gamma" else gamma(1 + 1 / self.shape))

    def draw(self, rng: random.Random) -> float:
        """From one request to the next, in multiples of the mean."""
        if self.dist == "Gamma":
            return rng.gammavariate(self.shape, self.scale) / self.mean_s
        return rng.weibullvariate(self.scale, self.shape) / self.mean_s


@dataclass(frozen=True, slots=True)
class ServegenDay:
    """One day of the clients. ``windows``: sorted by client, then time, counted from the day's start."""

    windows: Sequence[ClientWindow]

    @classmethod
    def read(cls, path: Path, day: int) -> "ServegenDay":
        """``day``: the first is 0. Raises TraceError for a file in another format, WorkloadError for an empty day."""
        start_s = day * DAY_S
        rows = (row for _, row in csv_rows(path, ClientWindow) if row.rate > 0)
        windows = [
            msgspec.structs.replace(row, start_s=row.start_s - start_s)
            for row in rows
            if start_s <= row.start_s < start_s + DAY_S
        ]
        if not windows:
            raise WorkloadError(f"{path}: no client has a request on day {day}")
        return cls(sorted(windows, key=lambda window: (window.client, window.start_s)))

    def arrivals_s(self, qps: float, duration_s: float, seed: int) -> list[float]:
        """The day in ``duration_s`` seconds at ``qps`` requests/s in the mean, sorted. Rates of clients and windows
        keep their proportions, and times between requests their distributions, in multiples of their mean."""
        share = qps * DAY_S / sum(window.rate * WINDOW_S for window in self.windows)
        rng = random.Random(f"servegen:{seed}")
        arrivals = [
            time_s * duration_s / DAY_S
            for _, windows in groupby(self.windows, key=lambda window: window.client)
            for time_s in _of_client(windows, share * duration_s / DAY_S, rng)
        ]
        return sorted(arrivals)


def _of_client(windows: Iterator[ClientWindow], share: float, rng: random.Random) -> Iterator[float]:
    """Its arrivals in seconds of the day, at ``share`` of its rates. What is left of a gap at a window's end goes on in
    the next in multiples of that one's mean, so that slow clients are not lost."""
    left: float | None = None
    for window in windows:
        mean_s = 1 / (window.rate * share)
        if left is None:
            left = rng.random() * window.draw(rng)  # it was under way when the day began
        time_s = left * mean_s
        while time_s < WINDOW_S:
            yield window.start_s + time_s
            time_s += window.draw(rng) * mean_s
        left = (time_s - WINDOW_S) / mean_s
