"""Questions about long documents as one batch beside online requests, live: presets side by side.

Each preset has a stack of its own; they are measured in turns. No prompt comes twice. Questions about all documents
are mixed.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, model_folder
from benchmarks.scheduling.side_by_side import Measured, measured, report_of
from benchmarks.vllm.servers import stack_options
from loadgen.replay import ReplayPlan
from loadgen.report.report import Report
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace

PRESETS = ("sarathi++", "hygen", "echo")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the batch, in tokens."""

    documents: int
    questions: int
    document_tokens: int
    question_tokens: int
    answer_tokens: int

    def prompts(self, seed: int) -> list[OfflinePrompt]:
        """In random order."""
        asked = [
            OfflinePrompt(
                self.answer_tokens,
                num_prompt_tokens=self.document_tokens + self.question_tokens,
                block_ids=(number,),
                block_tokens=self.document_tokens,
            )
            for number in range(self.documents)
            for _ in range(self.questions)
        ]
        random.Random(seed).shuffle(asked)
        return asked


def row(preset: str, made: Measured[Report]) -> dict[str, str]:
    offline = [each.offline for each in made.results if each.offline]
    rates = [each.total_tokens_per_s or 0.0 for each in offline]
    answers = [each.output_tokens_per_s or 0.0 for each in offline]
    online = [each.online for each in made.results if each.online]
    ttft = [each.ttft_ms.p90 for each in online if each.ttft_ms]
    tpot = [each.tpot_ms.p90 for each in online if each.tpot_ms]
    return {
        "preset": preset,
        "offline tokens/s": f"{fmean(rates):.0f}",
        "least to most": f"{min(rates):.0f} to {max(rates):.0f}",
        "of them generated": f"{fmean(answers):.0f}",
        "found in the cache": f"{made.found_share:.0%}",
        "preemptions": str(made.count("preemptions")),
        "TTFT p90 ms": f"{fmean(ttft):.0f}",
        "TPOT p90 ms": f"{fmean(tpot):.0f}",
    }


@benchmark
def main(
    online: Annotated[Path, typer.Option(metavar="TRACE", help="Arrivals, as for slackwater replay.")],
    window: Annotated[float, typer.Option(min=1.0, help="Seconds of each run.")] = 60.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before each.")] = 15.0,
    rate: Annotated[float, typer.Option(help="Online requests/s.")] = 0.5,
    start: Annotated[float, typer.Option(help="Skip so many seconds of the trace.")] = 600.0,
    length_scale: Annotated[float, typer.Option(help="Factor on the lengths of online requests.")] = 0.125,
    documents: int = 20,
    questions: Annotated[int, typer.Option(help="About each document.")] = 20,
    document_tokens: int = 1500,
    question_tokens: int = 40,
    answer_tokens: int = 24,
    kv_tokens: Annotated[int, typer.Option(help="Tokens that the KV cache has room for.")] = 12288,
    ttft_slo_ms: Annotated[float, typer.Option(help="Of echo.")] = 2000.0,
    tpot_slo_ms: Annotated[float, typer.Option(help="Of echo; more than online requests take alone.")] = 150.0,
    turns: int = 3,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    threads: int = cpu_count(),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    shape = Shape(documents, questions, document_tokens, question_tokens, answer_tokens)
    scaling = Scaling(start_s=start, duration_s=window, qps=rate, seed=0)
    plan = ReplayPlan(
        requests=replace(scaling, length_scale=length_scale).apply(list(read_trace(online))),
        prompts=shape.prompts(seed=0),
        scaling=scaling,
        model_path=model_folder(model),
        offline_mode="batch",
        count_generated=True,
        warm_up_s=warm_up,
    )
    options = stack_options(engine, model, threads, kv_tokens)
    deadlines = {"ttft-slo-ms": ttft_slo_ms, "tpot-slo-ms": tpot_slo_ms}
    stacks = {each: {**options, "preset": each, **(deadlines if each == "echo" else {})} for each in PRESETS}
    with TemporaryDirectory() as folder:
        made = asyncio.run(measured(stacks, turns, Path(folder), lambda url, turn: report_of(plan, url)))
    for preset, each in made.items():
        yield row(preset, each)
