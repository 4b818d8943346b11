"""A batch of mixed lengths, live: MMLU's questions, a few tokens out, beside stories of several hundred, mixed.

Each offline order has a stack of its own; they are measured in turns. A turn's prompts begin with a line of its own,
the same for all orders: none is cached from the turn before, and the greedy answers can be compared. Where no files are
given, questions and passages are drawn.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, model_folder
from benchmarks.harness.stack import wait_until
from benchmarks.harness.whole_batch import run_batch
from benchmarks.lab.few_and_many import FewAndMany
from benchmarks.scheduling.answers import Answers, answers_of, compared, together
from benchmarks.scheduling.side_by_side import Measured, counters, measured
from benchmarks.vllm.servers import stack_options
from loadgen.client.openai_client import OpenAIClient
from loadgen.workload.backlog import OfflinePrompt

ORDERS = ("fcfs", "psm", "blend")  # the first is what others' answers are compared with
PRESET = "sarathi++"  # nothing but the device bounds a step
ENDPOINT = "/v1/completions"
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A whole batch. ``seconds``: from its upload until it was seen to be complete."""

    seconds: float
    input_tokens: int
    output_tokens: int
    answers: Answers


def body(model: str, prompt: OfflinePrompt, mark: str) -> dict[str, Any]:
    greedy = {"model": model, "temperature": 0, "logprobs": 0, "max_tokens": prompt.max_tokens}
    return greedy | {"prompt": mark + (prompt.text or "")}


async def run(url: str, model: str, prompts: Sequence[OfflinePrompt], turn: int, folder: Path) -> Ran:
    """Raises ServerError."""
    bodies = [body(model, prompt, f"Set {turn}.\n") for prompt in prompts]
    lines = [{"custom_id": f"{n}", "method": "POST", "url": ENDPOINT, "body": each} for n, each in enumerate(bodies)]
    (file := folder / "batch.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))
    async with OpenAIClient(url, TIMEOUT_S) as client:
        if turn == 0:
            await client.post_json(ENDPOINT, {"model": model, "prompt": "Hello", "max_tokens": 4})
        num_before, start_s = counters(url)["finished_offline"], time.perf_counter()
        batch = await run_batch(client, file, ENDPOINT)
        seconds = time.perf_counter() - start_s
        output = await client.get_bytes(f"/v1/files/{batch['output_file_id']}/content")
    num_ended = num_before + len(lines)  # as is told once a second
    await asyncio.to_thread(wait_until, lambda: counters(url)["finished_offline"] >= num_ended)
    usage = batch["usage"]
    return Ran(seconds, usage["input_tokens"], usage["output_tokens"], answers_of(output))


def row(order: str, made: Measured[Ran], first: Measured[Ran]) -> dict[str, str]:
    seconds = [each.seconds for each in made.results]
    rates = [(each.input_tokens + each.output_tokens) / each.seconds for each in made.results]
    pairs = zip(made.results, first.results, strict=True)
    same = together([compared(ours.answers, theirs.answers) for ours, theirs in pairs])
    error = made.details.get("output_length_error")
    return {
        "order": order,
        "seconds": f"{fmean(seconds):.1f}",
        "least to most": f"{min(seconds):.1f} to {max(seconds):.1f}",
        "tokens/s": f"{fmean(rates):.0f}",
        "found in the cache": f"{made.found_share:.1%}",
        "preemptions": str(made.count("preemptions")),
        "lengths wrong by": "" if error is None else f"{error:.0%}",
        f"answers beside {ORDERS[0]}'s": "" if made is first else same.words(),
    }


@benchmark
def main(
    shots: Annotated[Path | None, typer.Option(help="MMLU's answered examples, JSONL.")] = None,
    questions: Annotated[Path | None, typer.Option(help="MMLU's questions, JSONL.")] = None,
    passages: Annotated[Path | None, typer.Option(help="A text that stories begin with passages of.")] = None,
    subjects: int = FewAndMany.subjects,
    subject_questions: Annotated[int, typer.Option(help="Of each subject.")] = FewAndMany.questions,
    answer_tokens: Annotated[int, typer.Option(help="At most, to a question.")] = FewAndMany.answer_tokens,
    stories: int = FewAndMany.stories,
    story_tokens: Annotated[int, typer.Option(help="At most, of a story.")] = FewAndMany.story_tokens,
    kv_tokens: Annotated[int, typer.Option(help="Tokens that the KV cache has room for.")] = 8192,
    turns: int = 3,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    threads: int = cpu_count(),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    shape = FewAndMany(
        subjects, subject_questions, answer_tokens=answer_tokens, stories=stories, story_tokens=story_tokens
    )
    prompts = shape.prompts(model_folder(model), shots, questions, passages, seed=0)
    common = stack_options(engine, model, threads, kv_tokens)
    stacks = {order: {**common, "preset": PRESET, "offline-order": order} for order in ORDERS}
    with TemporaryDirectory() as name:
        folder = Path(name)
        made = asyncio.run(measured(stacks, turns, folder, lambda url, turn: run(url, model, prompts, turn, folder)))
    for order, each in made.items():
        yield row(order, each, made[ORDERS[0]])
