"""Embeddings as the official client reads them."""

import base64
import math
import struct

import msgspec
import pytest
from openai.types import CreateEmbeddingResponse

from shared.openai.embeddings.answers import EmbeddingUsage, embeddings_body, shown_embedding
from shared.protocol.sampling import EmbeddingShape

VALUES = [0.5, -0.5, 0.5, 0.5]  # of length 1, and each a number of 32 bits
PACKED = struct.pack("<4f", *VALUES)


def test_each_input_has_its_embedding() -> None:
    other = struct.pack("<4f", 1, 0, 0, 0)
    body = embeddings_body([PACKED, other], EmbeddingShape(), "m", EmbeddingUsage.of(7, 3))
    parsed = CreateEmbeddingResponse.model_validate(msgspec.to_builtins(body), strict=True)
    assert [(each.index, each.embedding) for each in parsed.data] == [(0, VALUES), (1, [1.0, 0.0, 0.0, 0.0])]
    assert (parsed.model, parsed.object, parsed.data[0].object) == ("m", "list", "embedding")
    usage = {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
    assert msgspec.to_builtins(body.usage) == usage


def test_base64_is_of_the_same_numbers() -> None:
    shown = shown_embedding(PACKED, EmbeddingShape(is_base64=True))
    assert isinstance(shown, str) and base64.b64decode(shown) == PACKED


@pytest.mark.parametrize(("dimensions", "expected"), [(None, VALUES), (4, VALUES), (5, VALUES), (1, [1.0])])
def test_no_more_is_shown_than_was_asked_for(dimensions: int | None, expected: list[float]) -> None:
    assert shown_embedding(PACKED, EmbeddingShape(dimensions=dimensions)) == expected


def test_what_is_cut_has_length_1_again() -> None:
    packed = struct.pack("<4f", 3, -4, 12, 84)
    expected = [pytest.approx(3 / 5), pytest.approx(-4 / 5)]
    assert shown_embedding(packed, EmbeddingShape(dimensions=2)) == expected
    shown = shown_embedding(packed, EmbeddingShape(is_base64=True, dimensions=3))
    assert isinstance(shown, str)
    values = struct.unpack("<3f", base64.b64decode(shown))
    assert math.hypot(*values) == pytest.approx(1.0) and values[2] == pytest.approx(12 / 13)
    assert shown_embedding(packed, EmbeddingShape(dimensions=4)) == [3.0, -4.0, 12.0, 84.0], "it is as engines give it"


def test_a_beginning_of_zeros_stays_as_it_is() -> None:
    assert shown_embedding(struct.pack("<3f", 0, 0, 1), EmbeddingShape(dimensions=2)) == [0.0, 0.0]
