"""The model that benchmarks run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.executor.prepare_model import DEFAULT_MODEL as DEFAULT_MODEL
from services.executor.prepare_model import default_cache_dir, prepare

ModelOption = Annotated[str, typer.Option(help="Name, folder or hub id.")]


def model_folder(model: str = DEFAULT_MODEL) -> Path:
    """Made ready, which takes time once. Raises ConfigError for one that cannot be had."""
    return prepare(model, default_cache_dir(), lambda line: print(line, file=sys.stderr))
