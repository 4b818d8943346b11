"""How long embeddings may be, by what config.json says."""

from typing import Any

import pytest

from shared.text.embedding_sizes import EmbeddingSizes


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, EmbeddingSizes(None, ())),
        ({"hidden_size": 64}, EmbeddingSizes(64, ())),
        ({"n_embd": 32}, EmbeddingSizes(32, ())),
        ({"hidden_size": "wide", "d_model": 16}, EmbeddingSizes(16, ())),
        ({"hidden_size": 64, "text_config": {"hidden_size": 48}}, EmbeddingSizes(48, ())),
        ({"hidden_size": 64, "is_matryoshka": True}, EmbeddingSizes(64, None)),
        ({"hidden_size": 64, "is_matryoshka": False}, EmbeddingSizes(64, ())),
        ({"hidden_size": 64, "is_matryoshka": "yes"}, EmbeddingSizes(64, ())),
        ({"hidden_size": 64, "matryoshka_dimensions": [16, "8", 32]}, EmbeddingSizes(64, (16, 32))),
        ({"hidden_size": 64, "matryoshka_dimensions": [], "is_matryoshka": True}, EmbeddingSizes(64, None)),
        ({"hidden_size": 64, "matryoshka_dimensions": 16}, EmbeddingSizes(64, ())),
    ],
)
def test_sizes_are_those_of_the_model(config: dict[str, Any], expected: EmbeddingSizes) -> None:
    assert EmbeddingSizes.of(config) == expected


@pytest.mark.parametrize(
    ("sizes", "size", "said"),
    [
        (EmbeddingSizes(64), 64, None),
        (EmbeddingSizes(64), 65, "the model's embeddings have 64, not 65"),
        (EmbeddingSizes(64), 63, "not trained for shorter"),
        (EmbeddingSizes(64, None), 1, None),
        (EmbeddingSizes(64, None), 65, "have 64, not 65"),
        (EmbeddingSizes(64, (16, 32)), 32, None),
        (EmbeddingSizes(64, (16, 32)), 33, "was trained for 16, 32, not 33"),
        (EmbeddingSizes(64, (16, 128)), 128, "have 64, not 128"),
        (EmbeddingSizes(None), 64, "not trained for shorter"),
        (EmbeddingSizes(None, None), 64, None),
        (EmbeddingSizes(None, (16,)), 16, None),
    ],
)
def test_a_shorter_embedding_is_one_that_the_model_was_trained_for(
    sizes: EmbeddingSizes, size: int, said: str | None
) -> None:
    why = sizes.why_not(size)
    assert why is None if said is None else why is not None and said in why
