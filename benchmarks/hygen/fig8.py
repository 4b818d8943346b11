"""Figure 8: throughput over time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import StatisticsError, correlation

from benchmarks.charts import BLUE, GREY, PINK, SKY, from_zero, legend_above, panels
from benchmarks.hygen.bench import HYGEN, ONLINE_ONLY, STAR, Bench, Found, System
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, MEAN_TBT
from benchmarks.page import Result, Table
from loadgen.client.records import RequestRecord
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.protocol.slo_profile import Knob

PART_S, MOST_PARTS = 20.0, 60
STRICT, LOOSE = 0.1, 0.5  # tolerances of mean TBT
HEADER = ("system", "SLO", "knob", "offline tokens/s: mean", "least", "most", "correlation with online tokens/s")


class Timeline:
    """Tokens computed in each of equal parts of the window, prompt and output together. An online prompt counts when
    its first token comes, so that a part must be longer than online requests wait for theirs."""

    def __init__(self, duration_s: float) -> None:
        num_parts = max(1, min(MOST_PARTS, round(duration_s / PART_S)))
        self.duration_s = duration_s
        self.part_s = duration_s / num_parts
        self.online = [0.0] * num_parts
        self.offline = [0.0] * num_parts
        self.arrivals = [0.0] * num_parts
        self._num_tokens = 0

    def on_change(self, phase: VirtualPhase) -> None:
        """After each step."""
        totals = phase.executor.replica.totals
        num_tokens = totals.prompt_tokens + totals.online_tokens + totals.offline_tokens
        self._add(self.offline, phase.now_s, num_tokens - self._num_tokens)
        self._num_tokens = num_tokens

    def take_online(self, records: Sequence[RequestRecord]) -> None:
        """At the end: what was online, out of what was counted as offline so far."""
        for record in records:
            self._add(self.arrivals, record.due_s, 1)
            if record.token_times_s:
                self._move(record.token_times_s[0], record.prompt_tokens or 0)
            for time_s in record.token_times_s:
                self._move(time_s, 1)

    def per_s(self, counts: Sequence[float]) -> list[float]:
        return [count / self.part_s for count in counts]

    def _move(self, time_s: float, num_tokens: int) -> None:
        self._add(self.online, time_s, num_tokens)
        self._add(self.offline, time_s, -num_tokens)

    def _add(self, counts: list[float], time_s: float, num_tokens: int) -> None:
        if time_s < self.duration_s:
            counts[int(time_s / self.part_s)] += num_tokens


def make(lab: Lab) -> Result:
    bench = lab.bench(LLAMA)
    lines = [
        (f"hygen, mean TBT +{100 * LOOSE:.0f}%", SKY, *_run(bench, HYGEN, LOOSE)),
        (f"hygen, mean TBT +{100 * STRICT:.0f}%", BLUE, *_run(bench, HYGEN, STRICT)),
        (f"hygen-star, mean TBT +{100 * STRICT:.0f}%", PINK, *_run(bench, STAR, STRICT)),
    ]
    figure, axes = panels(2, 1, 4.4)
    online, offline = axes[0][0], axes[1][0]
    first = lines[0][3]
    minutes = [(index + 0.5) * first.part_s / 60 for index in range(len(first.online))]
    online.plot(minutes, first.per_s(first.arrivals), color=GREY, label="online requests/s")
    online.set_ylabel("online requests/s")
    for label, colour, _, timeline in lines:
        offline.plot(minutes, timeline.per_s(timeline.offline), color=colour, label=label)
    for panel in (online, offline):
        from_zero(panel)
        panel.set_xlim(0, first.duration_s / 60)
    offline.set_ylabel("offline tokens/s")
    offline.set_xlabel("minutes")
    legend_above(figure, *offline.get_legend_handles_labels())
    rows = [_row(label, found, timeline) for label, _, found, timeline in lines]
    caption = f"Tokens computed in parts of {first.part_s:g} s. {rates([bench])}; {lab.window}."
    return Result("fig8", [Table(caption, HEADER, rows)], figure)


def _run(bench: Bench, system: System, tolerance: float) -> tuple[Found, Timeline]:
    """The run of the value that keeps the SLO, once more with a clock."""
    found = bench.largest(system, [MEAN_TBT.slo(tolerance)])
    timeline = Timeline(bench.load.duration_s)
    phase = bench.phase(system if found.value is not None else ONLINE_ONLY, found.value, timeline.on_change)
    phase.run()
    timeline.take_online(phase.records)
    return found, timeline


def _row(label: str, found: Found, timeline: Timeline) -> list[str]:
    system, slo = label.split(", ")
    offline = timeline.per_s(timeline.offline)
    try:
        together = f"{correlation(timeline.online, timeline.offline):.2f}"
    except StatisticsError:  # one of them never changes
        together = ""
    unit = "ms" if found.knob is Knob.BUDGET_MS else "requests/s"
    figures = (sum(offline) / len(offline), min(offline), max(offline))
    return [system, slo, f"{found.text} {unit}", *(f"{figure:,.0f}" for figure in figures), together]
