"""Architectures out of config.json files, as their models publish them."""

from typing import Any

import pytest

from shared.latency.architectures import Architecture
from shared.latency.configured import architecture_of

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
    "head_dim": 64,
}


def test_the_sizes_are_those_of_the_file() -> None:
    found = architecture_of(SMOLLM2, "smollm2", 4)
    assert found == Architecture("smollm2", 30, 576, 9, 3, 1536, 49152, 8192, 64, 3, True, 4)
    assert found.parameters == pytest.approx(134.5e6, rel=0.001)
    assert found.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4


def test_what_a_file_leaves_out_follows() -> None:
    bare = {key: value for key, value in SMOLLM2.items() if key not in ("head_dim", "num_key_value_heads")}
    found = architecture_of(bare | {"hidden_size": 1152}, "model", 2)
    assert found is not None and (found.head_dim, found.num_kv_heads) == (128, 9)
    untied = architecture_of({key: value for key, value in SMOLLM2.items() if key != "tie_word_embeddings"}, "model", 2)
    assert untied is not None and not untied.ties_embeddings
    phi = architecture_of(SMOLLM2 | {"model_type": "phi"}, "phi", 2)
    assert phi is not None and phi.num_mlp_matrices == 2
    inner = architecture_of({"model_type": "vlm", "text_config": SMOLLM2}, "vlm", 2)
    assert inner is not None and inner.num_layers == 30


def test_heads_may_be_larger_than_their_share_of_the_hidden_size() -> None:
    """As Qwen3-0.6B's are."""
    found = architecture_of(SMOLLM2 | {"hidden_size": 1024, "num_attention_heads": 16, "head_dim": 128}, "qwen3", 2)
    assert found is not None and (found.head_dim, found.num_heads * found.head_dim) == (128, 2048)


@pytest.mark.parametrize(
    "unlike",
    [
        {"num_local_experts": 8},
        {"kv_lora_rank": 512},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 4096},
        {"quantization_config": {"bits": 4}},
        {"intermediate_size": None},
        {"num_attention_heads": "many"},
        {"text_config": "none"},
    ],
    ids=lambda unlike: next(iter(unlike)),
)
def test_what_is_no_dense_decoder_has_none(unlike: dict[str, Any]) -> None:
    assert architecture_of(SMOLLM2 | unlike, "model", 2) is None


def test_windows_that_are_off_or_as_long_as_the_context_do_not_count() -> None:
    for harmless in (
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 8192},
        {"sliding_window": None},
        {"layer_types": ["full_attention"] * 30},
        {"num_local_experts": 0},
    ):
        assert architecture_of(SMOLLM2 | harmless, "model", 2) is not None, harmless
