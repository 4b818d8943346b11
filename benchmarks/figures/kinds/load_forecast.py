"""What is foretold of the online load out of what was seen lately, and what came (Echo figure 11)."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from benchmarks.figures.backlog_lab import SHOWN_ON, BacklogLab, Online
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from benchmarks.lab.lab import ONLINE_ONLY
from loadgen.workload.servegen import DAY_S
from shared.pictures import BLUE, ORANGE

MINUTE_S, HOUR_S = 60.0, 3600.0
ACTUAL, FORETOLD = "actual", "mean + {:g} sigma of the last {:g} minutes"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of each value but the first ``window`` ones: the mean and ``sigmas`` deviations of the ``window`` before it (Echo
    section 5.3). Raises ValueError where there is none left."""

    values: Sequence[float]
    window: int
    sigmas: float

    def __post_init__(self) -> None:
        if not 0 < self.window < len(self.values):
            raise ValueError(f"a window of {self.window} foretells nothing of {len(self.values)} values")

    @property
    def actual(self) -> Sequence[float]:
        return self.values[self.window :]

    @property
    def foretold(self) -> list[float]:
        seen = (self.values[end - self.window : end] for end in range(self.window, len(self.values)))
        return [fmean(each) + self.sigmas * pstdev(each) for each in seen]

    @property
    def covered(self) -> float:
        """The share of values that are not above what was foretold."""
        pairs = list(zip(self.actual, self.foretold, strict=True))
        return sum(actual <= foretold for actual, foretold in pairs) / len(pairs)

    def cells(self) -> Row:
        mean, foretold = fmean(self.actual), fmean(self.foretold)
        return {
            "actual, mean": f"{mean:,.1f}",
            "most": f"{max(self.actual):,.0f}",
            "foretold, mean": f"{foretold:,.1f}",
            "foretold over actual": f"{foretold / mean:.2f}x" if mean else "",
            "not above it": f"{self.covered:.1%}",
        }

    def panel(self, interval_s: float, unit_s: float, ylabel: str) -> Panel:
        """Over units of time."""
        times = [(self.window + number) * interval_s / unit_s for number in range(len(self.actual))]
        label = FORETOLD.format(self.sigmas, self.window * interval_s / MINUTE_S)
        curves = [Curve(label, times, self.foretold, ORANGE, "-"), Curve(ACTUAL, times, self.actual, BLUE, "-")]
        return Panel(curves, ylabel=ylabel)


def load_forecast(lab: BacklogLab, day: Online, hour: Online, windows_s: Sequence[float], sigmas: float) -> Result:
    """Arrivals in each minute of a whole day, and the KV blocks that online requests hold each second of an hour's
    trace; the second of ``windows_s`` is drawn."""
    arrivals = per_minute(day.arrivals_s(lab.options, SHOWN_ON, lab.rate_of(day), DAY_S), DAY_S)
    moments = lab.bench(hour, None).record(ONLINE_ONLY).moments
    blocks = [float(moment.owners.online) for moment in moments]
    interval_s = moments[-1].time_s / (len(moments) - 1)
    rows: list[Row] = []
    for name, values, each_s in (("requests a minute", arrivals, MINUTE_S), ("KV blocks", blocks, interval_s)):
        for window_s in windows_s:
            if window_s < len(values) * each_s / 2:
                forecast = Forecast(values, round(window_s / each_s), sigmas)
                rows.append({"load": name, "window": f"{window_s / MINUTE_S:g} min", **forecast.cells()})
    drawn = Forecast(arrivals, round(windows_s[1] / MINUTE_S), sigmas)
    panels = [[drawn.panel(MINUTE_S, HOUR_S, "online requests a minute")]]
    caption = (
        f"The mean and {sigmas:g} deviations of a window before, and what came. Requests of each minute: {day.name} at "
        f"{lab.rate_of(day):g} requests/s, its whole day. KV blocks: online requests alone, each second; "
        f"{lab.where(hour)}."
    )
    return Result([Table(caption, rows)], draw(panels, 3.2, "hours"))


def per_minute(arrivals_s: Sequence[float], duration_s: float) -> list[float]:
    """How many come in each whole minute."""
    counts = [0.0] * int(duration_s / MINUTE_S)
    for arrival_s in arrivals_s:
        minute = int(arrival_s / MINUTE_S)
        if minute < len(counts):
            counts[minute] += 1
    return counts
