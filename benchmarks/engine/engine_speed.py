"""Decode and prefill speed of the torch engine beside transformers' own: ``python -m benchmarks.engine.engine_speed``.

Each size runs in turns, one step of ours and one forward of transformers (SDPA attention, DynamicCache, greedy pick),
so that both meet the same disturbances; the medians and their ratio are printed. Blocks are scattered over the pool.
``--cuda-graphs`` runs steps of ours with and without recorded graphs instead, on a GPU, beside transformers.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.batches import block_tables, decode_step, prefill_step, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.gpus import this_gpu
from benchmarks.harness.turns import Step, in_turns
from services.executor.engines.torch.device import DTYPES
from services.executor.engines.torch.engine import TorchEngine
from shared.latency.roofline import RooflineLatencyModel
from shared.replica.engine import StepBatch, batch_shape

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """``batches`` of decodes over ``context`` tokens, their own included; ``chunks``: prompts."""

    context: int
    batches: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        return max(max(self.batches) * (self.context // BLOCK_SIZE + 1), -(-max(self.chunks) // BLOCK_SIZE))

    def decodes(self, batch: int) -> StepBatch:
        return decode_step(block_tables(self.num_blocks, max(self.batches))[:batch], self.context - 1)

    def prefill(self, num_tokens: int) -> StepBatch:
        (blocks,) = block_tables(self.num_blocks, 1)
        return prefill_step(prompt_of(num_tokens), blocks[: -(-num_tokens // BLOCK_SIZE)])


CPU_SIZES = Sizes(256, (1, 2, 4, 8, 16, 32, 64), (32, 128, 256, 512))
GPU_SIZES = Sizes(1024, (1, 4, 16, 64, 128), (128, 512, 2048, 8000))
GRAPH_TOKENS = 1024  # of the largest step with a chunk that is recorded: as an executor has it
RIVAL = "transformers"


class Transformers:
    """The same model as transformers runs it."""

    def __init__(self, path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache

        self._new_cache: Any = DynamicCache
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
        self._device = device

    def decode(self, num_rows: int, context: int) -> Callable[[], None]:
        """One decode step of ``num_rows`` rows over ``context`` tokens, their own included."""
        cache = self._new_cache()
        prompt = torch.arange(context - 1, device=self._device).expand(num_rows, -1)
        with torch.inference_mode():
            for row in range(0, context - 1, 17):  # in slices: a whole prefill of the batch would need much memory
                self._model(prompt[:, row : row + 17], past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = torch.full((num_rows, 1), 7, device=self._device)

        def step() -> None:
            with torch.inference_mode():
                self._model(token, past_key_values=cache, use_cache=True).logits.argmax(-1).tolist()
                cache.crop(-1)

        return step

    def prefill(self, num_tokens: int) -> Callable[[], None]:
        """One prompt from nothing, with the token after it."""
        prompt = torch.arange(num_tokens, device=self._device)[None]

        def step() -> None:
            with torch.inference_mode():
                output = self._model(prompt, past_key_values=self._new_cache(), use_cache=True, logits_to_keep=1)
                output.logits.argmax(-1).tolist()

        return step


def row(name: str, num_tokens: int, ours: Step, rivals: Mapping[str, Step], runs: int, digits: int = 1) -> Row:
    """``rivals``: by name; each beside ours."""
    ours_ms, *theirs_ms = (times.median_ms for times in in_turns([ours, *rivals.values()], runs))
    taken_ms = {"": ours_ms, **{f"{rival} ": ms for rival, ms in zip(rivals, theirs_ms, strict=True)}}
    ratios = {f"as {rival}": ms / ours_ms for rival, ms in zip(rivals, theirs_ms, strict=True)}
    if len(ratios) == 1:
        ratios = dict(zip(("",), ratios.values(), strict=True))
    return {
        "step": name,
        **formatted(f".{digits}f", {f"{who}ms": ms for who, ms in taken_ms.items()}),
        **formatted(",.0f", {f"{who}tokens/s": num_tokens / ms * 1e3 for who, ms in taken_ms.items()}),
        **formatted(".2f", {f"times as fast {whom}".strip(): ratio for whom, ratio in ratios.items()}),
    }


def about(engine: TorchEngine) -> str:
    return f"{engine.spec.device}, {engine.spec.dtype}, torch {torch.__version__}"


def beside_transformers(path: Path, num_threads: int, runs: int, sizes: Sizes = CPU_SIZES) -> Results:
    """On the CPU."""
    engine = TorchEngine.load(path, "bench", "cpu", num_blocks=sizes.num_blocks, num_threads=num_threads)
    yield about(engine)
    for name, num_tokens, batch, theirs in _steps(sizes, Transformers(path), engine.spec.max_model_len):
        yield row(name, num_tokens, partial(engine.execute, batch), {RIVAL: theirs}, runs)
    engine.close()


def with_graphs(path: Path, runs: int, sizes: Sizes = GPU_SIZES) -> Results:
    """Decodes and prefills with recorded graphs, where a step is not too large for them, beside the same without and
    transformers. Raises ConfigError where there is no GPU."""
    load = partial(TorchEngine.load, path, "bench", "cuda", num_blocks=sizes.num_blocks)
    recorded, plain = load(max_graph_decodes=max(sizes.batches), max_graph_tokens=GRAPH_TOKENS), load()
    if not recorded.graph_sizes or not recorded.piece_sizes:
        sys.exit("this model cannot be recorded")
    yield about(plain)
    reference = Transformers(path, "cuda", DTYPES[plain.spec.dtype])
    for name, num_tokens, batch, theirs in _steps(sizes, reference, plain.spec.max_model_len):
        ours, without = (partial(engine.execute, batch) for engine in (recorded, plain))
        taken = row(name, num_tokens, ours, {"without graphs": without, RIVAL: theirs}, runs, digits=2)
        yield {**taken, **_roofline(plain, batch)}
    for engine in (recorded, plain):
        engine.close()


def _roofline(engine: TorchEngine, batch: StepBatch) -> Row:
    """What the simulator takes a step to last on this GPU, where it knows it."""
    gpu, architecture = this_gpu(), engine.spec.architecture
    if gpu is None or architecture is None:
        return {}
    model = RooflineLatencyModel.of(architecture, gpu)
    return formatted(".2f", {"roofline ms": model.predict_ms(batch_shape(batch))})


def _steps(sizes: Sizes, reference: Transformers, longest: int) -> Iterator[tuple[str, int, StepBatch, Step]]:
    """Name, number of tokens, ours and transformers'; no prompt has more than ``longest`` tokens."""
    for size in sizes.batches:
        theirs = reference.decode(size, sizes.context)
        yield f"decode, batch {size}, context {sizes.context}", size, sizes.decodes(size), theirs
    for length in sizes.chunks:
        if length <= longest:
            yield f"prefill, {length} tokens", length, sizes.prefill(length), reference.prefill(length)


@benchmark
def main(
    threads: Annotated[int, typer.Option(help="Of the engine.")] = cpu_count(),
    runs: Annotated[int, typer.Option(help="Per size.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs", help="With and without graphs, on a GPU.")] = False,
) -> Results:
    path = model_folder(model)
    return with_graphs(path, runs) if cuda_graphs else beside_transformers(path, threads, runs)
