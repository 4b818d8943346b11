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


@pytest.mark.parametrize(
    ("rope", "max_model_len"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 1.5, "original_max_position_embeddings": 32768}}, 49152),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 9000}}, 32768),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, 32768),
    ],
)
@pytest.mark.parametrize("is_text", [False, True])
def test_the_context_is_the_one_that_yarn_stretches_it_to(
    rope: dict[str, Any], max_model_len: int, is_text: bool, tmp_path: Path
) -> None:
    """As Qwen has it said in config.json, and as vLLM reads it."""
    config = {"max_position_embeddings": 32768, "vocab_size": 50257} | rope
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config} if is_text else config))
    assert ModelFacts.read(tmp_path).max_model_len == max_model_len
