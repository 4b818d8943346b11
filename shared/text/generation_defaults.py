"""How a model's makers would have its tokens sampled: generation_config.json, as vLLM takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.bounds import Amount, Finite, Share, Weight
from shared.errors import ModelError
from shared.text.model_folder import read_json

FILE = "generation_config.json"


class GenerationDefaults(msgspec.Struct, frozen=True):
    """What counts where a request says nothing. None: nothing is said there either."""

    temperature: Amount | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None  # 0 and -1 are off
    min_p: Share | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repetition_penalty: Weight | None = None

    @classmethod
    def read(cls, folder: Path) -> GenerationDefaults:
        """Of a prepared model's folder, which need not have the file. Raises ModelError."""
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            return msgspec.convert(read_json(path), cls)
        except msgspec.ValidationError as error:
            raise ModelError(f"{path}: {error}; set generation_config to none to do without it") from error

    def of(self, name: str) -> Any:
        """None too for what has no default there."""
        return getattr(self, name, None)
