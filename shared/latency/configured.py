"""A model's architecture out of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.latency.architectures import Architecture

UNGATED = frozenset({"gpt_neox", "gpt_neox_japanese", "nemotron", "persimmon", "phi", "starcoder2"})  # model types
# Experts, of which a token takes some; latent attention; recurrent or convolutional layers; and quantized weights.
UNLIKE = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "kv_lora_rank",
    "ssm_cfg",
    "mamba_d_state",
    "conv_L_cache",
    "num_kv_shared_layers",
    "quantization_config",
)


def architecture_of(config: Mapping[str, Any], name: str, bytes_per_value: int) -> Architecture | None:
    """``config``: as transformers writes it. None for what is no dense decoder with full attention in every layer, and
    where it does not tell its sizes under the usual names."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or any(text.get(key) for key in UNLIKE) or _has_windows(text):
        return None
    if config.get("quantization_config"):
        return None
    try:
        hidden_size, num_heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        return Architecture(
            name=name,
            num_layers=int(text["num_hidden_layers"]),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(text.get("num_key_value_heads") or num_heads),
            intermediate_size=int(text["intermediate_size"]),
            vocab_size=int(text["vocab_size"]),
            max_model_len=int(text["max_position_embeddings"]),
            head_dim=int(text.get("head_dim") or hidden_size // num_heads),
            num_mlp_matrices=2 if text.get("model_type") in UNGATED else 3,
            ties_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            bytes_per_value=bytes_per_value,
        )
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _has_windows(text: Mapping[str, Any]) -> bool:
    """Whether some layers do not attend to all tokens that the model takes."""
    if any(kind != "full_attention" for kind in text.get("layer_types") or ()):
        return True
    window = text.get("sliding_window") if text.get("use_sliding_window", True) else None
    return window is not None and window < (text.get("max_position_embeddings") or 0)
