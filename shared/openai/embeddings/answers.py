"""Embeddings as OpenAI's clients see them."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable
from typing import Literal

import msgspec

from shared.openai.completions.answers import PromptTokensDetails
from shared.protocol.sampling import EmbeddingShape

VALUE_BYTES = 4


class Embedding(msgspec.Struct, frozen=True):
    """Of one input, of length 1: numbers, or base64 of them as little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt_tokens: int, cached_tokens: int) -> EmbeddingUsage:
        """``cached_tokens``: of these."""
        return cls(prompt_tokens, prompt_tokens, PromptTokensDetails(cached_tokens))


class EmbeddingList(msgspec.Struct, frozen=True):
    """One embedding for each input, in their order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def embeddings_body(
    embeddings: Iterable[bytes], shape: EmbeddingShape, model: str, usage: EmbeddingUsage
) -> EmbeddingList:
    """``embeddings``: as engines give them."""
    data = [Embedding(index, shown_embedding(packed, shape)) for index, packed in enumerate(embeddings)]
    return EmbeddingList(data, model, usage)


def shown_embedding(packed: bytes, shape: EmbeddingShape) -> list[float] | str:
    """As its client asks for it."""
    if shape.dimensions is not None and shape.dimensions * VALUE_BYTES < len(packed):
        packed = _cut(packed[: shape.dimensions * VALUE_BYTES])
    return base64.b64encode(packed).decode() if shape.is_base64 else _numbers(packed)


def _cut(packed: bytes) -> bytes:
    """Of length 1 again."""
    values = _numbers(packed)
    length = math.hypot(*values) or 1.0
    return struct.pack(f"<{len(values)}f", *(value / length for value in values))


def _numbers(packed: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(packed) // VALUE_BYTES}f", packed))
