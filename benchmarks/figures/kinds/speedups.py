"""What offline work gets beside online work, over what the first of the systems gives it (Echo figure 6)."""

from collections.abc import Mapping, Sequence

from benchmarks.figures.backlog_lab import Backlog, BacklogLab, Online
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import System
from benchmarks.lab.recording import Recording
from shared.scheduling.packing.deadlines.token_slo import TokenSlo

OVER = "offline tokens/s over {}"


def speedups(
    lab: BacklogLab,
    online: Online,
    backlogs: Sequence[Backlog],
    systems: Mapping[str, System],
    colours: Sequence[str],
    slo: TokenSlo,
) -> Result:
    """A group of bars for each backlog, a bar for each system. ``systems``: by their names, in the order of
    ``colours``."""
    first = next(iter(systems))
    gains: dict[str, list[float]] = {name: [] for name in systems}
    rows: list[Row] = []
    for backlog in backlogs:
        bench, base = lab.bench(online, backlog), 0.0
        for name, system in systems.items():
            recording = bench.record(system).after(lab.warm_up_s(backlog))
            speed = recording.per_s(lambda moment: moment.offline_tokens)
            base = base or speed
            gains[name].append(speed / base if base else 0.0)
            over = {f"over {first}": f"{gains[name][-1]:.2f}x"}
            rows.append({"backlog": backlog.name, "system": name, **over, **_cells(recording, slo)})
    xs = range(len(backlogs))
    bars = [Curve(name, xs, gains[name], colour) for name, colour in zip(systems, colours, strict=True)]
    panel = Panel(bars, ylabel=OVER.format(first), names=[backlog.name for backlog in backlogs])
    caption = f"{slo_text(slo)} {lab.where(online, backlogs[0])}."
    return Result([Table(caption, rows)], draw([[panel]], 3.2))


def slo_text(slo: TokenSlo) -> str:
    """For captions."""
    return f"SLO: TTFT {slo.ttft_ms:g} ms and mean TPOT {slo.tpot_ms:g} ms for 90% of the online requests."


def _cells(recording: Recording, slo: TokenSlo) -> Row:
    speeds = {
        "offline tokens/s": recording.per_s(lambda moment: moment.offline_tokens),
        "prompt tokens computed/s": recording.per_s(lambda moment: moment.prompt_tokens),
    }
    return {
        **formatted(",.0f", speeds),
        **formatted(".1%", {"from the cache": recording.cached_share, "SLO attained": recording.attained(slo)}),
        "preemptions": str(recording.gained(lambda moment: moment.preemptions)),
    }
