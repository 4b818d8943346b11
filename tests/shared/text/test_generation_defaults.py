"""generation_config.json, as it is found in models' folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ModelError
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.served_model import ServedModel, defaults_of
from shared.text.generation_defaults import GenerationDefaults
from tests.shared.openai.completions.test_requests import parse

OF_QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [5], "max_new_tokens": 9}


def folder_with(folder: Path, config: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_what_is_said_there_is_read(tmp_path: Path) -> None:
    assert GenerationDefaults.read(tmp_path) == GenerationDefaults()
    assert defaults_of(folder_with(tmp_path, OF_QWEN), "auto") == GenerationDefaults(0.6, 0.95, 20)
    assert defaults_of(tmp_path, "none") == GenerationDefaults()
    penalty = GenerationDefaults.read(folder_with(tmp_path, {"repetition_penalty": 1, "top_k": -1, "top_p": None}))
    assert penalty == GenerationDefaults(top_k=-1, repetition_penalty=1.0)


@pytest.mark.parametrize("config", [{"temperature": -1}, {"top_p": 2}, {"top_k": "a"}, {"repetition_penalty": 0}])
def test_what_makes_no_sense_is_an_error_that_names_it(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(config))):
        GenerationDefaults.read(folder_with(tmp_path, config))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_they_count_where_a_request_says_nothing(endpoint: str) -> None:
    defaults = GenerationDefaults(0.6, 0.95, 20, 0.1, 0.5, 0.25, 1.2)
    model = ServedModel("tiny", 256, defaults=defaults)
    sampling = parse(endpoint, model).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.95, 20, 0.1)
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    assert penalties == (0.5, 0.25, 1.2)
    asked = parse(endpoint, model, temperature=0, top_p=1, top_k=0, repetition_penalty=1.0).sampling
    assert (asked.temperature, asked.top_p, asked.top_k, asked.repetition_penalty) == (0, 1, 0, 1.0)
    assert parse(TEXT, model).sampling.max_tokens == 16
    assert parse(CHAT, ServedModel("tiny", 256, defaults=GenerationDefaults(top_k=-1))).sampling.top_k == 0
