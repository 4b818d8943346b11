"""Decode and prefill speed of the torch engine beside transformers' own: ``python -m benchmarks.engine.engine_speed``.

Each size runs in turns, one step of ours and one forward of transformers (SDPA attention, DynamicCache, greedy pick),
so that both meet the same disturbances; the medians and their ratio are printed. Blocks are scattered over the pool.
``--cuda-graphs`` compares decode steps of ours with and without recorded graphs instead, on a GPU.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.batches import block_tables, decode_step, prefill_step, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.turns import Step, in_turns
from services.executor.engines.torch.engine import TorchEngine

CONTEXT = 256
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CHUNKS = (32, 128, 256, 512)
NUM_BLOCKS = max(BATCHES) * (CONTEXT // 16 + 1)
TABLES = block_tables(NUM_BLOCKS, max(BATCHES))


class Transformers:
    """The same model as transformers runs it."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache

        self._new_cache: Any = DynamicCache
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def decode(self, num_rows: int) -> Callable[[], None]:
        """One decode step of ``num_rows`` rows over CONTEXT tokens, their own included."""
        cache = self._new_cache()
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
        prompt = torch.arange(num_tokens)[None]

        def step() -> None:
            with torch.inference_mode():
                output = self._model(prompt, past_key_values=self._new_cache(), use_cache=True, logits_to_keep=1)
                output.logits.argmax(-1).tolist()

        return step


def row(name: str, num_tokens: int, ours: Step, rival: str, theirs: Step, runs: int) -> Row:
    ours_ms, theirs_ms = (times.median_ms for times in in_turns([ours, theirs], runs))
    per_s, their_per_s = (num_tokens / ms * 1e3 for ms in (ours_ms, theirs_ms))
    return {
        "step": name,
        **formatted(".1f", {"ms": ours_ms, f"{rival} ms": theirs_ms}),
        **formatted(",.0f", {"tokens/s": per_s, f"{rival} tokens/s": their_per_s}),
        "times as fast": f"{theirs_ms / ours_ms:.2f}",
    }


def about(engine: TorchEngine) -> str:
    return f"{engine.spec.device}, {engine.spec.dtype}, torch {torch.__version__}"


def beside_transformers(path: Path, num_threads: int, runs: int) -> Results:
    engine = TorchEngine.load(path, "bench", device="cpu", num_blocks=NUM_BLOCKS, num_threads=num_threads)
    rival, reference = "transformers", Transformers(path)
    yield about(engine)
    for size in BATCHES:
        ours = partial(engine.execute, decode_step(TABLES[:size], CONTEXT - 1))
        yield row(f"decode, batch {size}, context {CONTEXT}", size, ours, rival, reference.decode(size), runs)
    (blocks,) = block_tables(NUM_BLOCKS, 1)
    for length in CHUNKS:
        step = prefill_step(prompt_of(length), blocks[: -(-length // engine.spec.block_size)])
        ours = partial(engine.execute, step)
        yield row(f"prefill, {length} tokens", length, ours, rival, reference.prefill(length), runs)


def with_graphs(path: Path, runs: int) -> Results:
    """Raises ConfigError where there is no GPU."""
    recorded = TorchEngine.load(path, "bench", device="cuda", num_blocks=NUM_BLOCKS, max_graph_decodes=max(BATCHES))
    plain = TorchEngine.load(path, "bench", device="cuda", num_blocks=NUM_BLOCKS)
    if not recorded.graph_sizes:
        sys.exit("this model cannot be recorded")
    yield about(plain)
    for size in BATCHES:
        step = decode_step(TABLES[:size], CONTEXT - 1)
        ours, theirs = (partial(engine.execute, step) for engine in (recorded, plain))
        yield row(f"decode, batch {size}, context {CONTEXT}", size, ours, "without graphs", theirs, runs)


@benchmark
def main(
    threads: Annotated[int, typer.Option(help="Of the engine.")] = cpu_count(),
    runs: Annotated[int, typer.Option(help="Per size.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs", help="With and without graphs, on a GPU.")] = False,
) -> Results:
    path = model_folder(model)
    return with_graphs(path, runs) if cuda_graphs else beside_transformers(path, threads, runs)
