"""Throughput over time (HyGen figure 8)."""

from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean

from benchmarks.figures.trace_lab import FITTED, Metric, Setting, TraceLab
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import ONLINE_ONLY, STAR
from loadgen.client.records import RequestRecord
from shared.pictures import BLUE, GREY, PINK, SKY
from shared.protocol.executors import ExecutorCounters

PART_S, MOST_PARTS = 20.0, 60


class Timeline:
    """Tokens computed in each of equal parts of the window, prompt and output together. An online prompt counts when
    its first token comes, so that a part must be longer than online requests wait for theirs."""

    def __init__(self, duration_s: float) -> None:
        num_parts = max(1, min(MOST_PARTS, round(duration_s / PART_S)))
        self.duration_s = duration_s
        self.part_s = duration_s / num_parts
        self.online, self.offline, self.arrivals = ([0.0] * num_parts for _ in range(3))
        self._num_tokens = 0

    def on_step(self, now_s: float, totals: ExecutorCounters) -> None:
        """After each step."""
        num_tokens = totals.prompt_tokens + totals.online_tokens + totals.offline_tokens
        self._add(self.offline, now_s, num_tokens - self._num_tokens)
        self._num_tokens = num_tokens

    def take_online(self, records: Sequence[RequestRecord]) -> None:
        """At the end: what was online, out of what was counted as offline so far."""
        for record in records:
            self._add(self.arrivals, record.due_s, 1)
            for index, time_s in enumerate(record.token_times_s):
                num_tokens = 1 if index else 1 + (record.prompt_tokens or 0)
                self._add(self.online, time_s, num_tokens)
                self._add(self.offline, time_s, -num_tokens)

    def curve(self, label: str, counts: Sequence[float], colour: str) -> Curve:
        """Per second, over the minutes in which the parts' middles are."""
        minutes = [(index + 0.5) * self.part_s / 60 for index in range(len(counts))]
        return Curve(label, minutes, [count / self.part_s for count in counts], colour, "-")

    def _add(self, counts: list[float], time_s: float, num_tokens: int) -> None:
        if time_s < self.duration_s:
            counts[int(time_s / self.part_s)] += num_tokens


def over_time(lab: TraceLab, setting: Setting, metric: Metric, strict: float, loose: float) -> Result:
    """``strict`` and ``loose``: tolerances. The run of the value that keeps each SLO, once more with a clock."""
    bench = lab.bench(setting)
    offline: list[Curve] = []
    rows: list[Row] = []
    for system, tolerance, colour in ((FITTED, loose, SKY), (FITTED, strict, BLUE), (STAR, strict, PINK)):
        slo = f"{metric.label} +{100 * tolerance:.0f}%"
        found = bench.largest(system, [metric.slo(tolerance)])
        timeline = Timeline(bench.load.duration_s)
        serving = system if found.value is not None else ONLINE_ONLY
        timeline.take_online(bench.watch(serving, found.value, timeline.on_step))
        offline.append(curve := timeline.curve(f"{system.preset}, {slo}", timeline.offline, colour))
        cells = {"system": system.preset, "SLO": slo, "knob": found.text_with_unit}
        spread = {"offline tokens/s: mean": fmean(curve.ys), "least": min(curve.ys), "most": max(curve.ys)}
        rows.append({**cells, **formatted(",.0f", spread), "correlation with online tokens/s": _correlation(timeline)})
    arrivals = timeline.curve("", timeline.arrivals, GREY)
    panels = [[Panel([arrivals], ylabel="online requests/s")], [Panel(offline, ylabel="offline tokens/s")]]
    caption = f"Tokens computed in parts of {timeline.part_s:g} s. {lab.where([setting])}."
    return Result([Table(caption, rows)], draw(panels, 4.4, "minutes"))


def _correlation(timeline: Timeline) -> str:
    """Of online and offline tokens; empty where one of them never changes."""
    try:
        return f"{correlation(timeline.online, timeline.offline):.2f}"
    except StatisticsError:
        return ""
