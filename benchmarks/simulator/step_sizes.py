"""What larger steps gain a batch alone on GPUs, in the simulator: ``python -m benchmarks.simulator.step_sizes``.

Short questions and answers, from the first to the last, with steps of the usual sizes and of those that an executor
chooses by its latency model, on devices as their data sheets have them.
"""

import random
from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.harness.command import Results, benchmark, formatted
from benchmarks.lab.drawn import uniform_backlog
from benchmarks.lab.lab import SARATHI, SEED, Bench, Load, Machine, machine_name

MACHINES = ["llama2-7b:a100-40g", "llama2-7b:h100", "llama3.1-8b:h200", "qwen2.5-7b:h200"]
PROMPT, OUTPUT = (50, 200), (64, 192)  # tokens
LONGEST_S = 3600.0


@benchmark
def main(
    requests: Annotated[int, typer.Option(help="Of the batch.")] = 4000,
    machines: Annotated[list[str], typer.Option("--machine", help="MODEL:DEVICE; repeatable.")] = MACHINES,
) -> Results:
    load = Load((), uniform_backlog(requests, random.Random(SEED), PROMPT, OUTPUT), LONGEST_S)
    for name in machines:
        model, _, device = name.partition(":")
        usual = Machine(model=model, device=device)
        chosen = replace(usual, max_num_batched_tokens=None, max_num_seqs=None)
        before, after = (Bench(machine, load).run(SARATHI).offline_tokens_per_s for machine in (usual, chosen))
        limits = [machine.setup(SARATHI.strategy, SEED).limits for machine in (usual, chosen)]
        sizes = [f"{limit.max_num_batched_tokens:,}, {limit.max_num_seqs:,}" for limit in limits]
        yield {
            "machine": machine_name(usual),
            **dict(zip(("tokens and requests of a step", "as chosen"), sizes, strict=True)),
            **formatted(",.0f", {"tokens/s": before, "tokens/s as chosen": after}),
            "gain": f"{after / before:.2f}",
        }
