"""Whether the torch engine can run a model, by its config.json alone: before weights are read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.executor.engines.torch.attention import ATTENTION_NAME
from services.executor.engines.torch.model import TransformersForward, first_line, layers_without_attention, probe
from shared.errors import ModelError

UNKNOWN = "meta tensors"  # what torch says where it takes numbers to know how the model goes on


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """``why``: one sentence's part; ``has_attention``: in every layer, as the vllm engine needs it too."""

    why: str
    has_attention: bool


def why_not_runnable(folder: Path) -> Unrunnable | None:
    """None for a model that runs, and for one of which only its weights tell. The model is run without any."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # without numbers, experts are multiplied in bfloat16 alone
                config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME, trust_remote_code=False
            )
    except Exception as error:  # transformers have none of their own for what they do not know
        return Unrunnable(first_line(error), has_attention=True)
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return Unrunnable(f"{type(model).__name__} is no decoder", has_attention=True)
    try:
        with torch.inference_mode():
            shapes, _ = probe(TransformersForward(model.eval()), torch.device("meta"))
    except ModelError as error:
        return None if UNKNOWN in str(error) else Unrunnable(str(error), has_attention=True)
    missing = layers_without_attention(model, len(shapes))
    return Unrunnable(missing, has_attention=False) if missing else None
