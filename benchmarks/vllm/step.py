"""What our plan in the place of vLLM's scheduler costs a step: ``python -m benchmarks.vllm.step``.

One vLLM engine core, whose scheduler and sampler change in turns between ours and vLLM's own, so that both run on the
same weights, the same KV tensors and the same machine. Each turn decodes a few tokens of the same requests; its first
step, where requests come back into the runner's batch, does not count. CPU time is that of the whole process: other
work on the machine moves it less than it moves the clock.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.engine.batches import decodes, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from benchmarks.harness.turns import Times
from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.environment import import_vllm
from shared.protocol.sampling import SamplingParams

CONTEXT = 128
BATCHES = (1, 8, 32)
STEPS = 4  # of a turn, after its first
BLOCK_SIZE = 32
MAX_LEN = 256
Sampling = dict[str, Any]  # arguments of our parameters and of vLLM's alike
GREEDY: Sampling = {"temperature": 0.0}
SEEDED: Sampling = {"temperature": 0.8, "top_p": 0.95}


def upper_half(num_blocks: int, num_requests: int) -> list[list[int]]:
    """Block tables of our requests: vLLM's scheduler takes the lower half for its own."""
    size, first = MAX_LEN // BLOCK_SIZE, num_blocks // 2
    return [list(range(start, start + size)) for start in range(first, first + num_requests * size, size)]


def add_theirs(scheduler: Any, num_requests: int, sampling: Sampling) -> list[str]:
    """The same requests under vLLM's own scheduler and sampler. Returns their ids."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.v1.request import Request

    from services.executor.engines.vllm.runner_mirror import SAMPLING_KEY

    request_ids = [f"theirs-{number}" for number in range(num_requests)]
    for number, request_id in enumerate(request_ids):
        ours = {SAMPLING_KEY: SamplingParams(MAX_LEN, seed=number, **sampling)}  # the runner looks for its grammar
        options = {"max_tokens": MAX_LEN, "ignore_eos": True, "seed": number, "extra_args": ours}
        params = VllmSamplingParams(**options, **sampling)
        scheduler.add_request(Request(request_id, prompt_of(CONTEXT, number), params, None))
    return request_ids


class Rig:
    """The engine, and what its core is switched between."""

    def __init__(self, path: Path, threads: int) -> None:
        import_vllm(threads)
        from vllm.v1.sample.sampler import Sampler

        from services.executor.engines.vllm.core import VllmOptions
        from services.executor.engines.vllm.engine import VllmEngine

        num_blocks = 2 * max(BATCHES) * MAX_LEN // BLOCK_SIZE
        tokens = max(BATCHES) * CONTEXT
        options = VllmOptions(threads, num_blocks=num_blocks, max_model_len=MAX_LEN, max_num_batched_tokens=tokens)
        self.engine = VllmEngine.load(path, "bench", options)
        self.core: Any = self.engine._core
        self.runner: Any = self.core.model_executor.driver_worker.worker.model_runner
        self._planned, self._seeded = self.core.scheduler, self.runner.sampler
        self._plain_sampler = Sampler(logprobs_mode=self.runner.model_config.logprobs_mode)

    def plain_scheduler(self) -> Any:
        """vLLM's own, empty, as the engine core would make it."""
        from vllm.v1.core.sched.scheduler import Scheduler

        return Scheduler(
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
    from vllm.v1.request import RequestStatus

    plain = rig.plain_scheduler()
    their_ids, times = add_theirs(plain, num_requests, sampling), (Times(), Times())
    tables = upper_half(rig.engine.spec.num_blocks, num_requests)
    our = decodes(rig.engine, tables, CONTEXT, sampling=lambda number: SamplingParams(MAX_LEN, seed=number, **sampling))
    for turn in range(turns + 1):
        for scheduler, step, taken in ((None, partial(next, our), times[0]), (plain, rig.core.step, times[1])):
            rig.switch(scheduler)
            step()
            for _ in range(STEPS):
                (taken if turn else Times()).time(step)
    plain.finish_requests(their_ids, RequestStatus.FINISHED_ABORTED)
    rig.core.step()
    rig.switch(None)
    return times


def added(ours_ms: float, theirs_ms: float) -> str:
    return f"{(ours_ms / theirs_ms - 1) * 100:+.1f}%"


@benchmark
def main(
    threads: Annotated[int, typer.Option(help="Of the engine.")] = cpu_count(),
    turns: Annotated[int, typer.Option(help="Of each per size.")] = 12,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    rig = Rig(model_folder(model), threads)
    yield f"{rig.engine.spec.device}, {rig.engine.spec.dtype}"
    for name, sampling in (("greedy", GREEDY), ("temperature 0.8, top_p 0.95", SEEDED)):
        for size in BATCHES:
            ours, theirs = compare(rig, size, sampling, turns)
            yield {
                "step": f"decode, batch {size}, {name}",
                **formatted(".1f", {"CPU ms": ours.median_cpu_ms, "vLLM alone CPU ms": theirs.median_cpu_ms}),
                "CPU added": added(ours.median_cpu_ms, theirs.median_cpu_ms),
                **formatted(".1f", {"ms": ours.median_ms, "vLLM alone ms": theirs.median_ms}),
                "added": added(ours.median_ms, theirs.median_ms),
            }
    rig.engine.close()
