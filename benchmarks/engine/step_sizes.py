"""A batch alone on an engine in this process, with steps of several sizes, in turns.

All of its requests are there at the beginning, so that each step is as full as its sizes and the KV cache allow. What
counts is the process's processor time, which other work on the machine lengthens less than the time by the clock; the
engine has one thread, since threads that wait for each other would count too. Greedy answers are compared.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from loadgen.workload.backlog import load_backlog
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.step_sizes import StepSizes
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from shared.watch.tuning import NO_LATENCY_KNOWN

assert cpu_count  # its module sets how OpenMP's threads wait, before torch is imported
Answers = list[list[int]]


def prompts_of(file: Path, lines: int, tokenizer: Tokenizer) -> Answers:
    """As chats, in tokens."""
    texts = (prompt.text or "" for prompt in load_backlog(file, lines))
    return [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]


def run(engine: Engine, sizes: StepSizes, prompts: Sequence[list[int]], max_tokens: int) -> tuple[Answers, int, float]:
    """The answers, the number of steps, and processor time in seconds."""
    spec = engine.spec
    limits = Limits(spec.block_size, spec.num_blocks, sizes.max_num_batched_tokens, sizes.max_num_seqs)
    replica = Replica(limits, spec, None, Strategy.of("sarathi++"))
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        replica.submit(GenerateRequest(f"r{number}", Kind.OFFLINE, prompt, sampling, 0.0))
    start_s, steps = time.process_time(), 0
    while replica.has_work:
        steps += 1
        schedule = replica.schedule(None, Policy(), NO_LATENCY_KNOWN)
        replica.finish(engine.execute(replica.begin(schedule, steps)))
    elapsed_s = time.process_time() - start_s
    answers = {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}
    return [answers[f"r{number}"] for number in range(len(prompts))], steps, elapsed_s


@benchmark
def main(
    prompts: Annotated[Path, typer.Option(help="As the backlog of slackwater replay: texts.")],
    lines: int = 120,
    max_tokens: int = 64,
    rounds: int = 3,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    sizes: Annotated[str, typer.Option(help="Tokens x requests of a step; the first is compared with.")] = (
        "512x256 256x256 1024x512 2048x512"
    ),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path = model_folder(model)
    chosen = [StepSizes(*map(int, each.split("x"))) for each in sizes.split()]
    largest = max(each.max_num_batched_tokens for each in chosen), max(each.max_num_seqs for each in chosen)
    limits = {"max_num_batched_tokens": largest[0], "max_num_seqs": largest[1]}
    loaded = load_engine(ExecutorSettings(str(path), model_name=model, engine=engine, threads=1, **limits))
    asked = prompts_of(prompts, lines, Tokenizer.from_folder(path))
    run(loaded, chosen[0], asked[:2], 2)
    done = [[run(loaded, each, asked, max_tokens) for each in chosen] for _ in range(rounds)]
    first = [of_round[0] for of_round in done]
    for number, each in enumerate(chosen):
        own = [of_round[number] for of_round in done]
        ratios = [before[2] / after[2] for before, after in zip(first, own, strict=True)]
        same = sum(
            a == b for before, after in zip(first, own, strict=True) for a, b in zip(before[0], after[0], strict=True)
        )
        yield {
            "engine": loaded.spec.engine,
            "tokens and requests of a step": f"{each.max_num_batched_tokens}, {each.max_num_seqs}",
            "steps": str(own[0][1]),
            **formatted(".1f", {"processor time, s": median(seconds for _, _, seconds in own)}),
            **formatted(".3f", {"throughput": median(ratios), "least": min(ratios), "most": max(ratios)}),
            "same answers": f"{same} of {len(asked) * rounds}",
        }
    loaded.close()
