"""What our plan in the place of vLLM's scheduler costs a step: ``python -m benchmarks.vllm.step``.

One vLLM engine core, whose scheduler and sampler change in turns between ours and vLLM's own, so that both run on the
same weights, the same KV tensors and the same machine. Each turn decodes a few tokens of the same requests; its first
step, where requests come back into the runner's batch, does not count. CPU time is that of the whole process: other
work on the machine moves it less than it moves the clock.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.engine.batches import prompt_of
from benchmarks.harness.command import run_command
from benchmarks.harness.model import DEFAULT_MODEL, ModelOption, model_folder
from benchmarks.harness.table import print_table
from benchmarks.harness.turns import Times
from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.environment import import_vllm
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch

CONTEXT = 128
BATCHES = (1, 8, 32)
STEPS = 4  # of a turn, after its first
BLOCK_SIZE = 32
MAX_LEN = 256
Sampling = dict[str, Any]  # arguments of our parameters and of vLLM's alike
GREEDY: Sampling = {"temperature": 0.0}
SEEDED: Sampling = {"temperature": 0.8, "top_p": 0.95}


class Ours:
    """Requests that decode under our plan, on the upper half of the blocks."""

    def __init__(self, engine: Any, num_requests: int, sampling: Sampling) -> None:
        self._engine = engine
        self._computed = 0
        num_blocks = MAX_LEN // BLOCK_SIZE
        first = engine.spec.num_blocks // 2
        self._requests = [
            (
                f"ours-{n}",
                prompt_of(CONTEXT, n),
                list(range(first + n * num_blocks, first + (n + 1) * num_blocks)),
                SamplingParams(MAX_LEN, seed=n, **sampling),
            )
            for n in range(num_requests)
        ]

    def step(self) -> None:
        """One token for each request; the first step computes the prompts."""
        sequences = []
        for request_id, tokens, blocks, sampling in self._requests:
            table = blocks[: -(-len(tokens) // BLOCK_SIZE)]
            new = tokens[self._computed :]
            sequences.append(Sequence(request_id, new, self._computed, table, sampling, needs_sample=True))
        result = self._engine.execute(StepBatch(0, sequences))
        self._computed = len(self._requests[0][1])
        for request_id, tokens, _, _ in self._requests:
            tokens.append(result.sampled[request_id])


class Theirs:
    """The same requests under vLLM's own scheduler and sampler."""

    def __init__(self, core: Any, scheduler: Any, num_requests: int, sampling: Sampling) -> None:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.v1.request import Request

        self._core = core
        for n in range(num_requests):
            params = VllmSamplingParams(max_tokens=MAX_LEN, ignore_eos=True, seed=n, **sampling)
            scheduler.add_request(Request(f"theirs-{n}", prompt_of(CONTEXT, n), params, None))

    def step(self) -> None:
        """One token for each request; the first step computes the prompts."""
        self._core.step()


class Rig:
    """The engine, and what its core is switched between."""

    def __init__(self, path: Path, threads: int) -> None:
        import_vllm(threads)
        from vllm.v1.core.sched.scheduler import Scheduler

        from services.executor.engines.vllm.core import VllmOptions
        from services.executor.engines.vllm.engine import VllmEngine

        num_blocks = 2 * max(BATCHES) * MAX_LEN // BLOCK_SIZE
        tokens = max(BATCHES) * CONTEXT
        options = VllmOptions(threads, num_blocks=num_blocks, max_model_len=MAX_LEN, max_num_batched_tokens=tokens)
        self.engine = VllmEngine.load(path, "bench", options)
        self.core: Any = self.engine._core
        self.runner: Any = self.core.model_executor.driver_worker.worker.model_runner
        self._planned, self._seeded = self.core.scheduler, self.runner.sampler
        self._plain_sampler = type(self).plain_sampler(self.runner)
        self._scheduler_type = Scheduler

    @staticmethod
    def plain_sampler(runner: Any) -> Any:
        """vLLM's own."""
        from vllm.v1.sample.sampler import Sampler

        return Sampler(logprobs_mode=runner.model_config.logprobs_mode)

    def plain_scheduler(self) -> Any:
        """vLLM's own, empty, as the engine core would make it."""
        return self._scheduler_type(
            self.core.vllm_config,
            self._planned.kv_cache_config,
            self.core.structured_output_manager,
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )

    def switch(self, scheduler: Any) -> None:
        """None is ours."""
        self.core.scheduler = scheduler or self._planned
        self.runner.sampler = self._plain_sampler if scheduler else self._seeded


def compare(rig: Rig, num_requests: int, sampling: Sampling, turns: int) -> tuple[Times, Times]:
    """The counted steps of ours and of vLLM's."""
    plain = rig.plain_scheduler()
    rig.switch(plain)
    theirs, ours = Theirs(rig.core, plain, num_requests, sampling), Ours(rig.engine, num_requests, sampling)
    times = Times(), Times()
    for turn in range(turns + 1):
        for scheduler, step, taken in ((None, ours.step, times[0]), (plain, theirs.step, times[1])):
            rig.switch(scheduler)
            step()
            for _ in range(STEPS):
                (taken if turn else Times()).time(step)
    plain.finish_requests([f"theirs-{n}" for n in range(num_requests)], aborted())
    theirs.step()
    rig.switch(None)
    return times


def aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def cells(ours: list[float], theirs: list[float]) -> list[str]:
    """The medians, and what ours adds."""
    ours_ms, theirs_ms = statistics.median(ours), statistics.median(theirs)
    return [f"{ours_ms:.1f}", f"{theirs_ms:.1f}", f"{(ours_ms / theirs_ms - 1) * 100:+.1f}%"]


def main(
    threads: Annotated[int, typer.Option(help="Of the engine.")] = cpu_count(),
    turns: Annotated[int, typer.Option(help="Of each per size.")] = 12,
    model: ModelOption = DEFAULT_MODEL,
) -> None:
    rig, rows = Rig(model_folder(model), threads), []
    for name, sampling in (("greedy", GREEDY), ("temperature 0.8, top_p 0.95", SEEDED)):
        for size in BATCHES:
            ours, theirs = compare(rig, size, sampling, turns)
            figures = [*cells(ours.cpu_ms, theirs.cpu_ms), *cells(ours.clock_ms, theirs.clock_ms)]
            rows.append([f"decode, batch {size}, {name}", *figures])
    print(f"{rig.engine.spec.device}, {rig.engine.spec.dtype}\n")
    print_table(("step", "CPU ms", "vLLM alone CPU ms", "added", "ms", "vLLM alone ms", "added"), rows)
    rig.engine.close()


if __name__ == "__main__":
    run_command(main)
