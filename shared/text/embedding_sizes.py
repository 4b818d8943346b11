"""How long a model's embeddings are, and how short they may be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIZE_NAMES = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True, slots=True)
class EmbeddingSizes:
    """``full``: of the model's hidden states, None where it is not known; ``shorter``: those that the beginning of an
    embedding is good for (Matryoshka representation learning, Kusupati et al., 2022), None for all."""

    full: int | None = None
    shorter: tuple[int, ...] | None = ()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> EmbeddingSizes:
        """Of a config.json, which says ``is_matryoshka`` or ``matryoshka_dimensions``, as vLLM reads it."""
        text = config.get("text_config", config)
        full = next((text[name] for name in SIZE_NAMES if isinstance(text.get(name), int)), None)
        listed = config.get("matryoshka_dimensions")
        if isinstance(listed, list) and listed:
            return cls(full, tuple(size for size in listed if isinstance(size, int)))
        return cls(full, None if config.get("is_matryoshka") is True else ())

    def why_not(self, size: int) -> str | None:
        """None where embeddings may have so many dimensions."""
        if size == self.full:
            return None
        if self.full is not None and size > self.full:
            return f"the model's embeddings have {self.full}, not {size}"
        if self.shorter is None or size in self.shorter:
            return None
        if not self.shorter:
            return "the model was not trained for shorter embeddings; leave it out"
        return f"the model was trained for {', '.join(map(str, self.shorter))}, not {size}"
