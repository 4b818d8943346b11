"""The forward pass of Llama's family over merged weights, against transformers itself."""

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.torch.attention import LayerShape, ShapeProbe
from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.torch.linear import can_pack, packed_linear, padded_rows, plain_linear
from services.executor.engines.torch.llama import LlamaForward
from services.executor.engines.torch.model import LoadedModel, TransformersForward
from shared.replica.engine import KVRegions
from shared.scheduling.step_sizes import LARGEST_ON_CPU
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model

CPU = torch.device("cpu")
OURS = ["llama", "mistral", "qwen2", "qwen3"]
MAX_MODEL_LEN = 256
NUM_TOKENS = 11  # within the window of the family that has one


def tokens_of(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.arange(num_tokens) * 7919) % 300, torch.arange(num_tokens)


def shapes_of(model: Any) -> list[LayerShape]:
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    window = getattr(config, "sliding_window", None)
    return [LayerShape(config.num_key_value_heads, dim, dim, dim**-0.5, window)] * config.num_hidden_layers


@pytest.mark.parametrize("family", OURS)
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_logits_equal_transformers(
    family: str, packs: bool, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    if packs and not can_pack(CPU, dtype):
        pytest.skip("this processor packs no weights of this type, and the engine does not ask it to")
    model = save_model(tmp_path, family, **FAMILIES[family])
    input_ids, positions = tokens_of(NUM_TOKENS)
    with torch.inference_mode():
        expected = model(input_ids[None]).logits[0]
        forward = LlamaForward(model.to(dtype), shapes_of(model), packs)
        logits = forward(input_ids, positions, positions, ShapeProbe())
        assert logits.dtype is dtype
        assert torch.allclose(logits.float(), expected, atol=tolerance * float(expected.abs().max()))
        some = forward(input_ids, positions, torch.tensor([4, 10, 4]), ShapeProbe())
        torch.testing.assert_close(some, logits[[4, 10, 4]])
        assert forward(input_ids, positions, positions[:0], ShapeProbe()).shape == (0, 300)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family, **FAMILIES[family])
    with torch.inference_mode():
        loaded = LoadedModel.load(tmp_path, CPU, "auto", MAX_MODEL_LEN)
    assert isinstance(loaded.forward, LlamaForward if family in OURS else TransformersForward)
    window = FAMILIES[family].get("sliding_window")
    assert [shape.window for shape in loaded.shapes.values()] == [window, window]


def test_scaled_positions(tmp_path: Path) -> None:
    """A rotary embedding whose frequencies and amplitudes are not the default ones."""
    scaling = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    model = save_model(tmp_path, "llama", rope_parameters=scaling)
    input_ids, positions = tokens_of(100)
    with torch.inference_mode():
        loaded = LoadedModel.load(tmp_path, CPU, "auto", MAX_MODEL_LEN)
        logits = loaded.forward(input_ids, positions, positions, ShapeProbe())
        assert isinstance(loaded.forward, LlamaForward)
        torch.testing.assert_close(logits, model(input_ids[None]).logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("packs", [False, True])
def test_no_weight_is_there_twice(packs: bool, tmp_path: Path) -> None:
    """What was merged or packed is freed, though the model that it came from is still held."""
    model = save_model(tmp_path, "llama", tie_word_embeddings=True)
    lent = {}
    for name, parameter in model.model.layers.named_parameters():
        array = parameter.detach().numpy().copy()
        lent[name] = weakref.ref(array)  # alive as long as some tensor has its memory
        parameter.data = torch.from_numpy(array)
        del array
    forward = LlamaForward(model, shapes_of(model), packs)
    gc.collect()
    kept = {name.partition(".")[2] for name, array in lent.items() if array() is not None}
    norms = {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert kept == norms | (set() if packs else {"self_attn.o_proj.weight", "mlp.down_proj.weight"})
    assert forward._embedding.data_ptr() == model.lm_head.weight.data_ptr()


def test_a_layer_that_computes_something_else_is_transformers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.nn.functional.gelu(self.gate_proj(x)) * self.up_proj(x))

    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaMLP.forward", forward)
    model = save_model(tmp_path, "llama")
    input_ids, positions = tokens_of(NUM_TOKENS)
    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        loaded = LoadedModel.load(tmp_path, CPU, "auto", MAX_MODEL_LEN)
        logits = loaded.forward(input_ids, positions, positions, ShapeProbe())
        torch.testing.assert_close(logits, model(input_ids[None]).logits[0], atol=1e-4, rtol=1e-4)
    assert isinstance(loaded.forward, TransformersForward)
    assert [record.message for record in caplog.records] == ["model does not run as it could"]


def test_keys_in_another_order_are_other_kv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no request moves with its KV between engines that read it in two ways."""
    save_model(tmp_path, "llama")

    def layout() -> str:
        engine = TorchEngine.load(tmp_path, "m", device="cpu", num_threads=1, num_blocks=4)
        regions = engine.kv_regions()
        engine.close()
        assert isinstance(regions, KVRegions)
        return regions.layout

    ours = layout()
    assert layout() == ours
    monkeypatch.setattr("services.executor.engines.torch.model.is_llama", lambda model, shapes: False)
    assert layout() != ours


@pytest.mark.parametrize("num_rows", [1, 2, 33, 130])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linears(num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(num_rows)
    weight, bias = torch.randn(40, 24), torch.randn(40) if has_bias else None
    x = torch.randn(num_rows, 24)
    product = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(plain_linear(weight, bias)(x), product)
    torch.testing.assert_close(packed_linear(weight, bias)(x), product)
    torch.testing.assert_close(packed_linear(weight, bias)(x[None]), product[None])


def test_steps_of_any_size_are_products_of_few() -> None:
    """A process that runs for weeks sees them all, and for each oneDNN keeps code and memory."""
    sizes = {num_rows: padded_rows(num_rows) for num_rows in range(1, LARGEST_ON_CPU.max_num_batched_tokens + 1)}
    assert all(num_rows <= size <= 1.125 * num_rows for num_rows, size in sizes.items())
    assert all(size == num_rows for num_rows, size in sizes.items() if num_rows <= 16)
    assert len(set(sizes.values())) == 72


def test_what_packs() -> None:
    assert can_pack(CPU, torch.float32)
    assert not can_pack(torch.device("cuda"), torch.float32)
    assert not can_pack(CPU, torch.float64)
