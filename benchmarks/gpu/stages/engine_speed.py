"""Steps of the torch engine, of the prepared model and of larger random weights."""

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from benchmarks.engine.beside_loop import beside_loop
from benchmarks.engine.engine_speed import GPU_SIZES, Sizes, beside_transformers, with_graphs
from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.models import prepared_model, random_model
from benchmarks.gpu.pictures import lines, write
from benchmarks.harness.table import Row

RUNS = 15
LOOP_DECODES, LOOP_STEPS = 64, 200
SMALL, LARGE = "SmolLM2-135M", "Llama-3.2-1B"
LARGE_NEEDS_BYTES = 30 << 30  # two engines and transformers, each with weights and KV
TINY_SIZES = Sizes(40, (1, 2), (24,))

Lines = dict[str, list[tuple[int, float]]]
"""Decode batches and tokens/s, by way."""


def stage(context: Context) -> Found:
    num_steps = 0
    with ExitStack() as made:
        for name, folder in _models(context, made):
            yield f"{name}:"
            points: Lines = {}
            for found in _steps(context, folder):
                yield found
                num_steps += not isinstance(found, str)
                _note(found, points)
            yield write(context.out, f"engine-{_slug(name)}", partial(lines, points, name))
            if context.device == "cuda":
                yield "Beside an event loop in the same interpreter:"
                yield from beside_loop(folder, context.device, LOOP_DECODES, GPU_SIZES.context, LOOP_STEPS)
    return f"{num_steps} steps"


def _models(context: Context, made: ExitStack) -> Iterator[tuple[str, Path]]:
    prepared = prepared_model(context) if context.device == "cuda" or context.model is not None else None
    if prepared is not None:
        yield prepared
    else:
        sizes = SMALL if context.device == "cuda" else "tiny"
        yield f"{sizes}, random weights", made.enter_context(random_model(context, SMALL))
    if context.device == "cuda":
        gc.collect()  # the engines before, whose models hold themselves
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[1] >= LARGE_NEEDS_BYTES:
            yield f"{LARGE}, random weights", made.enter_context(random_model(context, LARGE))


def _steps(context: Context, folder: Path) -> Iterable[Row | str]:
    if context.device == "cuda":
        return with_graphs(folder, RUNS)
    return beside_transformers(folder, context.num_threads, 1, TINY_SIZES)


def _note(found: Row | str, points: Lines) -> None:
    """The tokens/s of a row of decodes."""
    if isinstance(found, str) or not (batch := re.search(r"decode, batch (\d+)", found["step"])):
        return
    for heading, cell in found.items():
        if heading.endswith("tokens/s"):
            way = heading.removesuffix("tokens/s").strip() or "ours"
            points.setdefault(way, []).append((int(batch[1]), float(cell.replace(",", ""))))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
