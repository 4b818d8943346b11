"""Decode and prefill speed of the torch engine beside transformers' own: ``python -m benchmarks.engine.engine_speed``.

Each size runs in turns, one step of ours and one forward of transformers (SDPA attention, DynamicCache, greedy pick),
so that both meet the same disturbances; the medians and their ratio are printed. Blocks are scattered over the pool.
``--cuda-graphs`` compares decode steps of ours with and without recorded graphs instead, on a GPU.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.table import print_table
from services.executor.engines.torch.engine import TorchEngine
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch

CONTEXT = 256
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CHUNKS = (32, 128, 256, 512)
NUM_BLOCKS = max(BATCHES) * (CONTEXT // 16 + 1)
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def sequence(number: int, num_new: int, num_computed: int, engine: TorchEngine) -> Sequence:
    """On blocks of its own, scattered over the pool."""
    spec = engine.spec
    count = -(-(num_new + num_computed) // spec.block_size)
    pool = random.Random(0).sample(range(spec.num_blocks), spec.num_blocks)
    tokens = [(number * 7919 + i * 31) % spec.vocab_size for i in range(num_new)]
    blocks = pool[number * count : (number + 1) * count]
    return Sequence(f"r{number}", tokens, num_computed, blocks, GREEDY, needs_sample=True)


class Transformers:
    """The same model as transformers runs it."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def decode(self, num_rows: int) -> Callable[[], None]:
        """One decode step of ``num_rows`` rows over CONTEXT tokens, their own included."""
        from transformers import DynamicCache

        cache = DynamicCache()
        prompt = torch.arange(CONTEXT - 1).expand(num_rows, -1)
        with torch.inference_mode():
            for row in range(0, CONTEXT - 1, 17):  # in slices: a whole prefill of the batch would need much memory
                self._model(prompt[:, row : row + 17], past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = torch.full((num_rows, 1), 7)

        def step() -> None:
            with torch.inference_mode():
                self._model(token, past_key_values=cache, use_cache=True).logits.argmax(-1).tolist()
                cache.crop(-1)

        return step

    def prefill(self, num_tokens: int) -> Callable[[], None]:
        """One prompt from nothing, with the token after it."""
        from transformers import DynamicCache

        prompt = torch.arange(num_tokens)[None]

        def step() -> None:
            with torch.inference_mode():
                output = self._model(prompt, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)
                output.logits.argmax(-1).tolist()

        return step


def compare(ours: Callable[[], object], theirs: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median milliseconds of each, after one warm-up run of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):
        for step, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            step()
            if run:
                taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[0]), statistics.median(times[1])


def row(name: str, num_tokens: int, medians: tuple[float, float]) -> list[str]:
    ours_ms, theirs_ms = medians
    speeds = [f"{num_tokens / ms * 1000:,.0f}" for ms in medians]
    return [name, f"{ours_ms:.1f}", f"{theirs_ms:.1f}", *speeds, f"{theirs_ms / ours_ms:.2f}"]


def decodes(size: int, engine: TorchEngine) -> StepBatch:
    return StepBatch(0, [sequence(number, 1, CONTEXT - 1, engine) for number in range(size)])


def compare_with_transformers(path: Path, num_threads: int, runs: int) -> None:
    engine = TorchEngine.load(path, "bench", device="cpu", num_blocks=NUM_BLOCKS, num_threads=num_threads)
    reference = Transformers(path)
    rows = []
    for size in BATCHES:
        batch = decodes(size, engine)
        medians = compare(lambda batch=batch: engine.execute(batch), reference.decode(size), runs)
        rows.append(row(f"decode, batch {size}, context {CONTEXT}", size, medians))
    for length in CHUNKS:
        batch = StepBatch(0, [sequence(0, length, 0, engine)])
        medians = compare(lambda batch=batch: engine.execute(batch), reference.prefill(length), runs)
        rows.append(row(f"prefill, {length} tokens", length, medians))
    print(f"{engine.spec.device}, {engine.spec.dtype}, torch {torch.__version__}\n")
    print_table(("step", "ms", "transformers ms", "tokens/s", "transformers tokens/s", "times as fast"), rows)


def compare_graphs(path: Path, runs: int) -> None:
    """Raises ConfigError where there is no GPU."""
    pool = {"device": "cuda", "num_blocks": NUM_BLOCKS}
    recorded = TorchEngine.load(path, "bench", **pool, max_graph_decodes=max(BATCHES))
    plain = TorchEngine.load(path, "bench", **pool)
    if not recorded.graph_sizes:
        sys.exit("this model cannot be recorded")
    rows = []
    for size in BATCHES:
        batch = decodes(size, plain)
        medians = compare(lambda batch=batch: recorded.execute(batch), lambda batch=batch: plain.execute(batch), runs)
        rows.append(row(f"decode, batch {size}, context {CONTEXT}", size, medians))
    print(f"{plain.spec.device}, {plain.spec.dtype}, torch {torch.__version__}\n")
    print_table(("step", "ms", "without graphs ms", "tokens/s", "without, tokens/s", "times as fast"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.engine_speed", description=__doc__)
    parser.add_argument("--threads", type=int, default=cpu_count(), help="of the engine (default %(default)s)")
    parser.add_argument("--runs", type=int, default=9, help="per size (default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="name, folder or hub id (default %(default)s)")
    parser.add_argument("--cuda-graphs", action="store_true", help="compare with and without graphs, on a GPU")
    arguments = parser.parse_args()
    path = prepare(arguments.model, default_cache_dir(), lambda line: print(line, file=sys.stderr)).path
    if arguments.cuda_graphs:
        compare_graphs(path, arguments.runs)
    else:
        compare_with_transformers(path, arguments.threads, arguments.runs)


if __name__ == "__main__":
    main()
