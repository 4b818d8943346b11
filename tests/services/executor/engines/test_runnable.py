"""What the torch engine cannot run is refused by its config.json, with the engine that can."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from services.executor.engines.vllm.architectures import served_architectures
from services.executor.prepare_model import COMMON_FAMILIES, require_runnable
from shared.errors import ModelError
from tests.services.executor.engines.test_torch_models import FAMILIES, SHAPE
from tests.with_vllm import NEEDS_VLLM


def save_config(folder: Path, model_type: str, **options: Any) -> None:
    """A folder without weights."""
    AutoConfig.for_model(model_type, **SHAPE | options).save_pretrained(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        require_runnable(folder, "torch")
    return str(refused.value)


def test_families_that_are_not_looked_at_are_those_that_are_run_in_tests() -> None:
    assert sorted(FAMILIES) == sorted(COMMON_FAMILIES)


@pytest.mark.parametrize("family", ["llama", "olmo2", "opt", "cohere", "gemma3_text", "gpt2", "mixtral"])
def test_decoders_are_let_through(family: str, tmp_path: Path) -> None:
    """Of gpt2 only its weights tell."""
    save_config(tmp_path, family)
    require_runnable(tmp_path, "torch")


@NEEDS_VLLM
def test_an_attention_that_we_lack_is_the_vllm_engines(tmp_path: Path) -> None:
    save_config(tmp_path, "gemma2", head_dim=16, architectures=["Gemma2ForCausalLM"])
    said = refusal(tmp_path)
    assert "is of the family gemma2, which the torch engine cannot run" in said and "softcap" in said
    assert said.endswith("choose --engine vllm, which serves it")
    require_runnable(tmp_path, "vllm")
    require_runnable(tmp_path, "sim")


def test_an_attention_that_cannot_be_replaced_is_refused_in_words(tmp_path: Path) -> None:
    save_config(tmp_path, "gptj")
    assert "the torch engine cannot run: its attention is its own, and not to be replaced; " in refusal(tmp_path)


def test_layers_without_attention_are_no_engines(tmp_path: Path) -> None:
    save_config(tmp_path, "mamba", architectures=["MambaForCausalLM"])
    said = refusal(tmp_path)
    assert "0 use plain attention" in said and "nor can the vllm engine" in said


@NEEDS_VLLM
def test_encoders_are_no_engines(tmp_path: Path) -> None:
    """Though transformers has a class that would have them generate."""
    save_config(tmp_path, "bert", architectures=["BertModel"])
    said = refusal(tmp_path)
    assert "it is an encoder" in said and said.endswith("nor does the vLLM that is installed: choose another model")


@NEEDS_VLLM
def test_what_nobody_serves_is_said_so(tmp_path: Path) -> None:
    save_config(tmp_path, "t5", architectures=["T5ForConditionalGeneration"])
    assert refusal(tmp_path).endswith("nor does the vLLM that is installed: choose another model")
    (tmp_path / "config.json").write_text('{"model_type": "not-known-to-anyone", "architectures": ["X"]}')
    assert "not-known-to-anyone" in refusal(tmp_path)


@NEEDS_VLLM
def test_vllms_table_is_read_without_importing_it() -> None:
    served = served_architectures()
    assert served is not None and {"LlamaForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM"} <= set(served)
    assert "BertModel" not in served
