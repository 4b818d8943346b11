"""Throughput by pipeline depth: ``python -m benchmarks.bus.pipeline``.

Gateway, bus, offline-queue and an executor with the sim engine (K stages that share a step's time) run as in the stack;
one batch without a latency budget, from its first step to the message that its last request has ended.
"""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.gateway.batch_scale import PRESET, Told, step_messages, submit, write_input
from benchmarks.harness.command import Results, benchmark
from benchmarks.harness.stack import Stack, stack
from services.local.commands.server import ApiClient
from shared.protocol.steps import PlanSource

LINE_BYTES, OUTPUT = 1900, 64  # of a line, whose prompt has some 250 tokens; tokens
LIMITS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "256")


async def run(running: Stack, source: Path, num_requests: int) -> list[Told]:
    """The messages of its steps, and the one behind the last."""
    told: list[Told] = []
    async with step_messages(running.nats_url) as messages:
        with ApiClient(running.url) as client:
            await asyncio.to_thread(submit, client, source)
        while sum(len(step.ended) for _, step in told) < num_requests:
            at_s, step = await messages.get()
            if told or step.entries:
                told.append((at_s, step))
    return told


@benchmark
def main(requests: int = 512) -> Results:
    first_per_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.jsonl"
        write_input(source, requests, requests * LINE_BYTES, OUTPUT)
        for depth in (1, 2, 4):
            executor = (*PRESET, *LIMITS, "--engine", "sim", "--pipeline-depth", str(depth))
            with stack(offline_queue=PRESET, executor=executor, gateway=()) as running:
                told = asyncio.run(run(running, source, requests))
            per_s = requests * OUTPUT / (told[-1][0] - told[0][0])
            first_per_s = first_per_s or per_s
            steps = [step for _, step in told if step.entries]
            yield {
                "pipeline depth": str(depth),
                "output tokens/s": f"{per_s:.0f}",
                "of depth 1": f"{per_s / first_per_s:.2f}",
                "steps": str(len(steps)),
                "planned": str(sum(step.source is PlanSource.PLAN for step in steps)),
            }
