"""What grew in hours and what did not: tables, a picture, and a verdict in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from matplotlib.figure import Figure

from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.table import Result, Results, quantile
from benchmarks.reliability.sampling import ProcessSample, StackSample
from benchmarks.reliability.slopes import Slope, slope
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW

COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY)
FLAT, SHORT = "flat", "too short"
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Quantity(Generic[S]):
    """``least_growth``: that matters, an hour, and ``least_share`` of its mean; the larger of the two."""

    name: str
    of: Callable[[S], float | None]
    least_growth: float
    least_share: float = 0.0


OF_PROCESS: Sequence[Quantity[ProcessSample]] = (
    Quantity("memory MiB", lambda sample: sample.rss_mib, 1.0, 0.01),
    Quantity("Python's blocks", lambda sample: sample.held and sample.held.blocks, 2000.0, 0.01),
    Quantity("used of malloc MiB", lambda sample: sample.held and sample.held.used_mib, 1.0, 0.01),
    Quantity("open files", lambda sample: sample.num_files, 1.0),
    Quantity("sockets", lambda sample: sample.num_sockets, 1.0),
    Quantity("threads", lambda sample: sample.num_threads, 0.5),
)
OF_STORE: Sequence[Quantity[StackSample]] = (
    Quantity("streams MiB", lambda sample: sample.stream_mib, 1.0),
    Quantity("messages", lambda sample: sample.num_messages, 50.0),
    Quantity("consumers", lambda sample: sample.num_consumers, 1.0),
    Quantity("disk MiB", lambda sample: sample.disk_mib, 2.0),
)
STORE = "the bus's store"


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of one process, or of the store, over the run."""

    of: str
    quantity: str
    times_s: Sequence[float]
    values: Sequence[float]
    bound_per_hour: float

    @property
    def slope(self) -> Slope | None:
        return slope(self.times_s, self.values)

    @property
    def verdict(self) -> str:
        return SHORT if self.slope is None else self.slope.verdict(self.bound_per_hour)

    @property
    def cell(self) -> str:
        """The mean, what it gains in an hour, and the verdict where it is not flat."""
        found = self.slope
        if found is None:
            return f"{self.values[-1]:,.0f}; {SHORT}"
        word = "" if self.verdict == FLAT else f", {self.verdict}"
        return f"{found.mean:,.1f}; {found.per_hour:+,.2f} ± {found.error:,.2f}{word}"


def lines_of(samples: Sequence[StackSample]) -> list[Line]:
    """Of each process, and of the store; a process that was restarted counts from its last start."""
    found = []
    for name in {name: None for sample in samples for name in sample.processes}:
        own = [(sample.time_s, sample.processes[name]) for sample in samples if name in sample.processes]
        own = [(time_s, process) for time_s, process in own if process.pid == own[-1][1].pid]
        found += [line for each in OF_PROCESS if (line := _line(name, each, own)) is not None]
    told = [(sample.time_s, sample) for sample in samples if sample.streams]
    return found + [line for each in OF_STORE if (line := _line(STORE, each, told)) is not None]


def _line(of: str, quantity: Quantity[S], samples: Sequence[tuple[float, S]]) -> Line | None:
    known = [(time_s, value) for time_s, sample in samples if (value := quantity.of(sample)) is not None]
    if not known:
        return None
    values = [value for _, value in known]
    bound = max(quantity.least_growth, quantity.least_share * sum(values) / len(values))
    return Line(of, quantity.name, [time_s for time_s, _ in known], values, bound)


def report(samples: Sequence[StackSample], warm_up_min: float) -> Results:
    """Each quantity's mean and what it gains in an hour, with one standard error; the verdict, and the picture."""
    if not samples:
        yield "Nothing was seen."
        return
    begin_s = samples[0].time_s + 60 * warm_up_min
    lines = lines_of([sample for sample in samples if sample.time_s >= begin_s])
    for of in {line.of: None for line in lines}:
        own = {line.quantity: line.cell for line in lines if line.of == of}
        quantities = OF_STORE if of == STORE else OF_PROCESS
        yield {"of": of, **{quantity.name: own.get(quantity.name, "") for quantity in quantities}}
    loads = sorted(sample.load for sample in samples)
    hours = (samples[-1].time_s - samples[0].time_s) / 3600
    yield (
        f"\n{hours:.2f} hours, of which the first {warm_up_min:g} minutes do not count; the machine's load average was "
        f"{loads[0]:.1f} to {loads[-1]:.1f}, in the middle {quantile(loads, 0.5):.1f}."
    )
    yield verdict(lines, restarts(samples))
    yield Result([], drawn(samples))


def verdict(lines: Sequence[Line], restarted: Mapping[str, int]) -> str:
    """In words."""
    by_word: dict[str, list[str]] = {}
    for line in lines:
        by_word.setdefault(line.verdict, []).append(f"{line.quantity} of {line.of}")
    words = [f"{word[0].upper()}{word[1:]}: {', '.join(names)}." for word, names in by_word.items() if word != FLAT]
    words += [f"{name} was restarted {times} times." for name, times in restarted.items() if times]
    if words:
        return " ".join(["All else is flat.", *words])
    return "Everything is flat, and nothing was restarted."


def restarts(samples: Sequence[StackSample]) -> dict[str, int]:
    """Of each process of the stack, how often another took its place."""
    pids: dict[str, dict[int, None]] = {}
    for sample in samples:
        for name, process in sample.processes.items():
            pids.setdefault(name, {})[process.pid] = None
    return {name: len(known) - 1 for name, known in pids.items()}


def drawn(samples: Sequence[StackSample]) -> Figure:
    """A panel for each quantity over hours, of all processes or of the store."""
    lines, start_s = lines_of(samples), samples[0].time_s
    names = list({line.of: None for line in lines if line.of != STORE})
    colours = dict(zip(names, COLOURS, strict=False))

    def panel(quantity: str, is_store: bool) -> Panel:
        own = [line for line in lines if line.quantity == quantity and (line.of == STORE) == is_store]
        curves = [
            Curve(
                "" if is_store else line.of,
                [(time_s - start_s) / 3600 for time_s in line.times_s],
                line.values,
                colours.get(line.of, GREY),
                "-",
            )
            for line in own
        ]
        return Panel(curves, title=f"{STORE}: {quantity}" if is_store else quantity)

    panels = [panel(each.name, False) for each in OF_PROCESS] + [panel(each.name, True) for each in OF_STORE]
    panels = [each for each in panels if each.curves]
    rows = [panels[start : start + 2] for start in range(0, len(panels) // 2 * 2, 2)]
    return draw(rows, 1.9 * len(rows) + 0.6, "hours")
