"""Questions about long documents as one batch beside online requests, live: presets side by side.

Each preset has a stack of its own. All run at once and are measured in turns, so that all of them
meet the same disturbances; no prompt comes twice. Questions about all documents are mixed.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, model_folder
from benchmarks.vllm.servers import BLOCK_TOKENS, stack
from loadgen.client.openai_client import OpenAIClient
from loadgen.progress import NoProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.report import Report
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace

PRESETS = ("sarathi++", "hygen", "echo")
TIMEOUT_S = 600.0
COUNTED = ("cached_tokens", "prompt_tokens", "preemptions")


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


@dataclass(slots=True)
class Measured:
    """Of one preset, one entry a turn."""

    reports: list[Report] = field(default_factory=list)
    counts: list[Mapping[str, int]] = field(default_factory=list)

    def row(self, preset: str) -> dict[str, str]:
        rates = [each.offline.total_tokens_per_s or 0.0 for each in self.reports if each.offline]
        answers = [each.offline.output_tokens_per_s or 0.0 for each in self.reports if each.offline]
        counts = {name: sum(each[name] for each in self.counts) for name in COUNTED}
        found = counts["cached_tokens"] / max(1, counts["cached_tokens"] + counts["prompt_tokens"])
        online = [each.online for each in self.reports if each.online]
        ttft = [each.ttft_ms.p90 for each in online if each.ttft_ms]
        tpot = [each.tpot_ms.p90 for each in online if each.tpot_ms]
        return {
            "preset": preset,
            "offline tokens/s": f"{fmean(rates):.0f}",
            "least to most": f"{min(rates):.0f} to {max(rates):.0f}",
            "of them generated": f"{fmean(answers):.0f}",
            "found in the cache": f"{found:.0%}",
            "preemptions": str(counts["preemptions"]),
            "TTFT p90 ms": f"{fmean(ttft):.0f}",
            "TPOT p90 ms": f"{fmean(tpot):.0f}",
        }


async def measured(
    plan: ReplayPlan, options: Mapping[str, object], deadlines: Mapping[str, object], turns: int, folder: Path
) -> dict[str, Measured]:
    """By preset. ``deadlines``: options of the preset that goes by them. Raises ServerError."""
    made = {preset: Measured() for preset in PRESETS}
    async with AsyncExitStack() as started:
        urls = {}
        for preset in PRESETS:
            (own := folder / preset).mkdir()
            given = {**options, "preset": preset, **(deadlines if preset == "echo" else {})}
            urls[preset] = await started.enter_async_context(stack(preset, own, given))
        for turn in range(turns):
            for preset in PRESETS[turn % len(PRESETS) :] + PRESETS[: turn % len(PRESETS)]:
                before = _counters(urls[preset])
                async with OpenAIClient(urls[preset], TIMEOUT_S) as client:
                    replay = Replay(plan, client, NoProgress())
                    await replay.prepare_and_run()
                after = _counters(urls[preset])
                made[preset].reports.append(replay.report(partial=False))
                made[preset].counts.append({name: after[name] - before[name] for name in COUNTED})
    return made


def _counters(url: str) -> dict[str, Any]:
    (executor,) = httpx.get(f"{url}/status").raise_for_status().json()["status"]["executors"]
    counters: dict[str, Any] = executor["counters"]
    return counters


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
    options = {
        "engine": engine,
        "model": model,
        "threads": threads,
        "kv-blocks": kv_tokens // BLOCK_TOKENS[engine],
    }
    with TemporaryDirectory() as folder:
        deadlines = {"ttft-slo-ms": ttft_slo_ms, "tpot-slo-ms": tpot_slo_ms}
        made = asyncio.run(measured(plan, options, deadlines, turns, Path(folder)))
    for preset, each in made.items():
        yield each.row(preset)
