"""What became of a stack that got more than it can do: tables, a picture, words."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.table import Result, Results, Row, quantile
from benchmarks.reliability.overload_run import OverloadRun, Stage
from benchmarks.reliability.sampling import StackSample
from benchmarks.reliability.soak_report import COLOURS
from benchmarks.reliability.tables import tally_rows
from loadgen.client.records import RequestRecord
from loadgen.report.metrics import LatencySamples, summarize
from loadgen.report.slo import parse_slo
from shared.pictures import GREY


def report(run: OverloadRun, slos: Sequence[str], load_before: float) -> Results:
    """Stages, who was turned away, what processes held, and how soon all was as before."""
    yield f"Capacity: {run.capacity:.1f} requests a second."
    for stage in run.stages:
        yield latency_row(stage.name, stage.records, stage)
        if stage.light:
            yield latency_row(f"{stage.name}: a light client", stage.light, stage)
    yield from kept(run.stages, slos)
    if run.stages:
        yield from tally_rows(run.stages[-1].tallies)
        yield from retry_words(run.stages[-1])
    yield from held_rows(run.sampler.samples, run.stages)
    yield recovery(run)
    loads = [sample.load for sample in run.sampler.samples] or [0.0]
    yield f"The machine's load average: {load_before:.1f} before, {min(loads):.1f} to {max(loads):.1f} meanwhile."
    if len(run.sampler.samples) > 1:
        yield Result([], drawn(run))


def latency_row(name: str, records: Sequence[RequestRecord], stage: Stage) -> Row:
    """Of the streams that were answered whole."""
    samples = LatencySamples.of(records)
    ttft, tbt = summarize(samples.ttft_ms), summarize(samples.tbt_ms)
    seconds = stage.end_s - stage.start_s
    return {
        "stage": name,
        "streams answered": f"{len(records):,}",
        "a second": f"{len(records) / seconds:.1f}" if seconds > 0 else "",
        "TTFT p50 / p99 ms": f"{ttft.p50:,.0f} / {ttft.p99:,.0f}" if ttft else "",
        "TBT mean / p99 ms": f"{tbt.mean:.1f} / {tbt.p99:.0f}" if tbt else "",
    }


def kept(stages: Sequence[Stage], slos: Sequence[str]) -> Iterator[str]:
    """Each SLO in each stage."""
    for text in slos:
        slo = parse_slo(text)
        for stage in stages:
            summary = summarize(getattr(LatencySamples.of(stage.records), slo.metric))
            if summary is not None and not slo.relative:
                value = getattr(summary, slo.statistic)
                yield f"{text}, {stage.name}: {value:,.0f} ms, {'kept' if slo.is_met(value, slo.limit) else 'BROKEN'}."


def retry_words(stage: Stage) -> Iterator[str]:
    """How long the refused were told to stay away."""
    for tally in stage.tallies:
        if tally.retry_after_s:
            ordered = sorted(tally.retry_after_s)
            least_s, middle_s, most_s = ordered[0], quantile(ordered, 0.5), ordered[-1]
            yield f"{tally.name}: Retry-After {least_s:.0f} to {most_s:.0f} s, in the middle {middle_s:.0f}."


def held_rows(samples: Sequence[StackSample], stages: Sequence[Stage]) -> Iterator[Row]:
    """Of each process: before the overload, the most in its two halves, and at the end."""
    if len(stages) < 3 or not samples:
        return
    begin_s, end_s = stages[-1].unix_s
    middle_s = (begin_s + end_s) / 2
    names = list(samples[-1].processes)
    for name in names:
        seen = [(sample.time_s, sample.processes[name]) for sample in samples if name in sample.processes]
        before = [process for time_s, process in seen if time_s < begin_s]
        first = [process for time_s, process in seen if begin_s <= time_s < middle_s]
        second = [process for time_s, process in seen if middle_s <= time_s < end_s]
        yield {
            "process": name,
            "memory MiB before": f"{before[-1].rss_mib:.0f}" if before else "",
            "most in the first half": f"{max(each.rss_mib for each in first):.0f}" if first else "",
            "in the second": f"{max(each.rss_mib for each in second):.0f}" if second else "",
            "at the end": f"{seen[-1][1].rss_mib:.0f}",
            "files before": f"{before[-1].num_files}" if before else "",
            "files, the most": f"{max(process.num_files for _, process in seen)}",
            "files at the end": f"{seen[-1][1].num_files}",
            "restarts": f"{len({process.pid for _, process in seen}) - 1}",
        }


def recovery(run: OverloadRun) -> str:
    """In words."""
    if not run.probes:
        return "It was cut short before the load ended."
    if run.recovered_s is None:
        return f"NOT as before after {run.probes[-1].at_s:.0f} s: {run.probes[-1]}."
    return (
        f"As before, with a first token within {1e3 * run.wanted_s:.0f} ms, {run.recovered_s:.1f} s after the last "
        "request of the overload was sent; what had been taken by then went on to its end."
    )


def drawn(run: OverloadRun) -> Figure:
    """Memory and descriptors of each process, by minutes."""
    samples = run.sampler.samples
    names = list(samples[-1].processes)
    minutes = [(sample.time_s - samples[0].time_s) / 60 for sample in samples]
    panels = []
    for title, field in (("memory MiB", "rss_mib"), ("open files", "num_files")):
        curves = []
        for name, colour in zip(names, (*COLOURS, GREY), strict=False):
            known = [
                (m, getattr(s.processes[name], field))
                for m, s in zip(minutes, samples, strict=True)
                if name in s.processes
            ]
            curves.append(Curve(name, [m for m, _ in known], [value for _, value in known], colour, "-"))
        panels.append(Panel(curves, title=title))
    return draw([panels], 3.4, "minutes")
