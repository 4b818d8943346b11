"""Models that the engine's stages run: what is prepared, else random weights. Nothing is fetched."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.engine.random_models import KNOWN, TINY, save_random_model, save_tokenizer
from benchmarks.gpu.context import Context
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.errors import ModelError


@contextlib.contextmanager
def random_model(context: Context, name: str) -> Iterator[Path]:
    """A folder with a model of these sizes and a tokenizer, for as long as it is used; on a CPU a tiny one."""
    is_gpu = context.device == "cuda"
    sizes, dtype = (KNOWN[name], torch.bfloat16) if is_gpu else (TINY, torch.float32)
    with tempfile.TemporaryDirectory() as store:
        folder = Path(store) / (name if is_gpu else f"{name}-tiny")  # its name is the model's
        save_random_model(folder, "llama", sizes, context.device, dtype)
        save_tokenizer(folder, sizes["vocab_size"])
        yield folder


def prepared_model(context: Context) -> tuple[str, Path] | None:
    """That was asked for, else the default one where it is at hand, with its name. Raises ModelError where one that was
    asked for is not."""
    try:
        folder = prepare(context.model or DEFAULT_MODEL, default_cache_dir(), lambda line: print(line, file=sys.stderr))
    except (ModelError, ModuleNotFoundError):
        if context.model is not None:
            raise
        return None
    return context.model or DEFAULT_MODEL, folder
