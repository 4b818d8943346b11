"""Weights of a decoder alone, as embedding models keep them: without the name that it has within the whole model, and
without an output layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from shared.text.model_folder import read_json

LOAD_FORMAT = "slackwater-bare"
DECODER = "model."  # its name within the whole
OUTPUT = "lm_head."


def bare_weights_args(folder: Path) -> dict[str, Any]:
    """Of vLLM's EngineArgs, what such a folder needs; empty for any other. Without an output layer the embeddings of
    tokens stand in its place: nothing reads it but completions, which mean nothing. Raises ModelError."""
    names = _weight_names(folder)
    if not any(name.startswith("layers.") for name in names):
        return {}
    args = {"load_format": LOAD_FORMAT, "worker_extension_cls": f"{__name__}.{KnowsBareWeights.__name__}"}
    has_output = any(name.startswith(OUTPUT) for name in names)
    return args if has_output else args | {"hf_overrides": {"tie_word_embeddings": True}}


@register_model_loader(LOAD_FORMAT)
class BareWeightsLoader(DefaultModelLoader):
    """vLLM's own, with the decoder's name before each weight of it."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="safetensors"))

    def get_all_weights(
        self, model_config: Any, model: torch.nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        for name, weight in super().get_all_weights(model_config, model):
            yield name if name.startswith(OUTPUT) else DECODER + name, weight


class KnowsBareWeights:
    """Each worker imports this module to find it, and has the loader by that."""


def _weight_names(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return list(read_json(index).get("weight_map") or ())
    whole = folder / "model.safetensors"
    if not whole.exists():
        return []
    with safe_open(whole, framework="pt") as file:
        return list(file.keys())
