"""Facts of a model, which several of its files tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer

PREPARED = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None)  # whose <|im_end|> is token 2


@pytest.mark.parametrize(
    ("of_config", "generation", "of_tokenizer", "ends"),
    [
        (0, {}, "<|im_end|>", (0, 2)),  # as of a base model that was trained to chat
        ([0, 2], {}, "<|im_end|>", (0, 2)),
        (0, {"eos_token_id": 2}, "<|im_end|>", (2,)),
        (0, {"eos_token_id": [1]}, {"content": "<|im_end|>"}, (1, 2)),
        (0, {}, "no token", (0,)),
        (None, {}, None, ()),
        (49152, {}, "<|im_end|>", (2,)),  # the model never says what is no token of its own
    ],
)
def test_an_output_ends_with_each_token_that_a_file_calls_an_end(
    of_config: Any, generation: dict[str, Any], of_tokenizer: Any, ends: tuple[int, ...], tmp_path: Path
) -> None:
    config = {"max_position_embeddings": 128, "vocab_size": 49152, "eos_token_id": of_config}
    named = {"eos_token": of_tokenizer}
    files = {"config.json": config, "generation_config.json": generation, "tokenizer_config.json": named}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "tokenizer.json").write_bytes((PREPARED / "tokenizer.json").read_bytes())
    assert ModelFacts.read(tmp_path).eos_token_ids == ends
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == frozenset(ends)


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions"])
def test_the_context_has_another_name_in_gpt_2s_family(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: 1024, "vocab_size": 50257}))
    assert ModelFacts.read(tmp_path).max_model_len == 1024
