"""Stacks with options of their own, each under the same replay: ``python -m benchmarks.scheduling.replayed --online
TRACE --offline PROMPTS --stack '' --stack preset=sarathi++``.

All are started, with ``slackwater up``, and are measured in turns. A turn is a replay of its own: the online requests
alone, the batch alone for half the time, and both (``slackwater replay --baseline``).
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.harness.command import Results, Row, benchmark
from benchmarks.scheduling.side_by_side import Measured, measured, report_of
from loadgen.options import WorkloadOptions
from loadgen.report.report import Report, Summary

AS_IT_COMES = "as it comes"
FAILED = "requests failed"  # in the notes that say so
COUNTED = {
    "steps planned": "steps_planned",
    "without a plan that was due": "steps_local",
    "KV lost": "preemptions",
    "paused": "pauses",
    "slots copied out": "checkpointed_slots",
    "and back": "restored_slots",
}


def options_of(text: str) -> dict[str, str]:
    """``kv-blocks=100 preset=echo`` by name. Raises BadParameter."""
    pairs = [each.partition("=") for each in text.split()]
    if wrong := [name for name, is_given, _ in pairs if not (name and is_given)]:
        raise typer.BadParameter(f"{wrong[0]!r} is no NAME=VALUE", param_hint="--stack")
    return {name.removeprefix("--"): value for name, _, value in pairs}


def row(name: str, made: Measured[Report]) -> Row:
    """Medians of the turns, with the least and the most where there are several; ``of alone``: over the online requests
    of the same turn by themselves. Counts are of all phases of all turns."""
    reports = made.results
    online = [each.online for each in reports]
    ratios = [each.interference for each in reports]
    ttft, tbt = [each and each.ttft_ms for each in online], [each and each.tbt_ms for each in online]
    offline = [each.offline and each.offline.output_tokens_per_s for each in reports]
    alone = [each.baseline and each.baseline.offline and each.baseline.offline.output_tokens_per_s for each in reports]
    return {
        "stack": name,
        "TTFT mean ms": _cell([_mean(each) for each in ttft], ".0f"),
        "p99 ms": _cell([_p99(each) for each in ttft], ",.0f"),
        "of alone: mean": _cell([each and each.ttft_ms.mean for each in ratios], ".2f"),
        "p99": _cell([each and each.ttft_ms.p99 for each in ratios], ".2f"),
        "TBT mean, ms": _cell([_mean(each) for each in tbt], ".1f"),
        "p99, ms": _cell([_p99(each) for each in tbt], ".0f"),
        "of alone: mean TBT": _cell([each and each.tbt_ms.mean for each in ratios], ".2f"),
        "p99 TBT": _cell([each and each.tbt_ms.p99 for each in ratios], ".2f"),
        "offline output tokens/s": _cell(offline, ".1f"),
        "the batch alone": _cell(alone, ".1f"),
        **{heading: f"{made.count(counter):,}" for heading, counter in COUNTED.items()},
    }


def failures(name: str, made: Measured[Report]) -> Iterator[str]:
    """Which requests failed in each turn, and why: the figures are of those that were answered."""
    for turn, report in enumerate(made.results, start=1):
        if failed := [note for note in report.notes if FAILED in note]:
            yield f"{name}, turn {turn}: {'; '.join(failed)}."


def _mean(summary: Summary | None) -> float | None:
    return summary and summary.mean


def _p99(summary: Summary | None) -> float | None:
    return summary and summary.p99


def _cell(values: list[float | None], form: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    middle = format(median(known), form)
    return middle if len(known) == 1 else f"{middle} ({known[0]:{form}} to {known[-1]:{form}})"


@benchmark
def main(
    workload: WorkloadOptions,
    stack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'NAME=VALUE ...'",
            help="Repeatable: options of slackwater up, as 'budget-ms=60 kv-blocks=100'; '' sets nothing, and is the "
            "default.",
        ),
    ] = None,
    duration: Annotated[float, typer.Option(min=1.0, help="Seconds of the window.")] = 60.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before it.")] = 8.0,
    turns: Annotated[int, typer.Option(min=1, help="Replays of each stack.")] = 1,
) -> Results:
    if workload.online is None or workload.offline is None:
        raise typer.BadParameter("give a trace and prompts: --online TRACE --offline PROMPTS")
    texts = dict.fromkeys(stack or [""])
    stacks = {text or AS_IT_COMES: options_of(text) for text in texts}
    plan = workload.plan(duration, None, baseline=True, warm_up_s=warm_up, count_generated=True)
    with TemporaryDirectory() as folder:
        made = asyncio.run(measured(stacks, turns, Path(folder), lambda url, turn: report_of(plan, url)))
    for name, each in made.items():
        yield row(name, each)
    for name, each in made.items():
        yield from failures(name, each)
