"""Other model families than the default one: small ones with random weights, against transformers itself."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.torch.model import why_not_exact
from shared.errors import ModelError
from shared.protocol.sampling import SamplingParams
from tests.services.executor.engines.engine_driver import EngineDriver, Request

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 12, "head_dim": 16},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.2},
    "gpt_neox": {"rotary_pct": 0.25},
    "gemma": {"head_dim": 16},
}
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


def save_model(path: Path, model_type: str, **options: Any) -> Any:
    """A model folder with random weights; returns the model as transformers runs it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SHAPE | options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("family", [*FAMILIES, *EXPERTS])
def test_greedy_equals_transformers(family: str, tmp_path: Path) -> None:
    model = save_model(tmp_path, family, **(FAMILIES | EXPERTS)[family])
    engine = TorchEngine.load(tmp_path, family, device="cpu", num_blocks=120, block_size=8, num_threads=1)
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 300) for _ in range(rng.randint(1, 70))] for _ in range(6)]
    sampling = SamplingParams(max_tokens=10, temperature=0.0)
    requests = [Request(f"r{i}", prompt, sampling) for i, prompt in enumerate(prompts)]
    outputs = EngineDriver(engine, seed=3, max_tokens=60, drop=0.1).run(requests)
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + outputs[f"r{i}"]])).logits[0, len(prompt) - 1 : -1]
        assert outputs[f"r{i}"] == logits.argmax(-1).tolist(), f"prompt {i}"
    assert len({tuple(output) for output in outputs.values()}) > 1
    engine.close()


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("gemma2", {"head_dim": 16, "layer_types": ["full_attention"] * 2}, "softcap"),
        ("mamba", {}, "0 use plain attention"),
    ],
)
def test_models_beyond_our_kernels_are_refused(
    family: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save_model(tmp_path, family, **options)
    with pytest.raises(ModelError, match=reason):
        TorchEngine.load(tmp_path, family, device="cpu", num_blocks=8)


FALCON_H1 = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
BART = {"d_model": 64, "decoder_ffn_dim": 96, "decoder_layers": 2, "decoder_attention_heads": 4, "init_std": 0.3}


@pytest.mark.parametrize(("family", "options"), [("falcon_h1", FALCON_H1), ("bart", BART)])
def test_a_model_whose_tokens_hang_on_others_of_a_step_is_refused(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """By a state beside attention, or by positions that are counted from the beginning of the step."""
    save_model(tmp_path, family, **options)
    with pytest.raises(ModelError, match="hangs on other requests of its step, or on its place there"):
        TorchEngine.load(tmp_path, family, device="cpu", num_blocks=8)


def test_model_that_reads_its_own_weights_runs_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights have another layout: a layer that multiplies by ``linear.weight`` itself must keep the plain."""
    save_model(tmp_path, "gemma", **FAMILIES["gemma"])

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.linear(x, self.gate_proj.weight)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x))

    monkeypatch.setattr("transformers.models.gemma.modeling_gemma.GemmaMLP.forward", forward)
    engine = TorchEngine.load(tmp_path, "gemma", device="cpu", num_blocks=8)
    request = Request("r", [5, 6, 7], SamplingParams(max_tokens=3, temperature=0.0))
    assert len(EngineDriver(engine, seed=0).run([request])["r"]) >= 1


def test_broken_weights_are_a_model_error(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"cannot load the model in .*: model\.safetensors cannot be read"):
        TorchEngine.load(tmp_path, "llama", device="cpu", num_blocks=8)


@pytest.mark.parametrize("lacking", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_weights_that_are_not_there_are_a_model_error(tmp_path: Path, lacking: str) -> None:
    """Their place would be taken by random numbers."""
    save_model(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    del weights[lacking]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"lack {re.escape(lacking)}, in whose place"):
        TorchEngine.load(tmp_path, "llama", device="cpu", num_blocks=8)


def test_a_token_without_a_number_is_no_reason_to_refuse_a_model(tmp_path: Path) -> None:
    """Requests without it are answered."""
    save_model(tmp_path, "gemma", **FAMILIES["gemma"])
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][3] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    TorchEngine.load(tmp_path, "gemma", device="cpu", num_blocks=8).close()


def test_memory_that_is_short_for_the_weights_is_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "llama")

    def run_out(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("services.executor.engines.torch.model.LlamaForward", run_out)
    with pytest.raises(ModelError, match=r"cannot load the model in .*: CUDA out of memory\."):
        TorchEngine.load(tmp_path, "llama", device="cpu", num_blocks=8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "nonesuch"}, "cannot load the model .*nonesuch"),
        ({"num_attention_heads": "nine"}, "cannot load the model .*num_attention_heads.* got str"),
        ({"hidden_act": "nonesuch"}, "cannot load the model .*there is no 'nonesuch'"),
        ({"num_hidden_layers": 0}, "has 0 layers"),
    ],
)
def test_a_configuration_that_no_model_has_is_a_model_error(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    save_model(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=why):
        TorchEngine.load(tmp_path, "llama", device="cpu", num_blocks=8)


def longrope(original: int) -> dict[str, Any]:
    """As Phi-3 has it: other factors for requests of more than ``original`` tokens."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **factors}
    return {"rope_parameters": rope, "original_max_position_embeddings": original, "sliding_window": None}


def test_a_rotary_embedding_that_goes_by_others_of_a_step_is_refused_unless_it_cannot(tmp_path: Path) -> None:
    """transformers chooses the factors by the longest request of all that it is given."""
    model = save_model(tmp_path, "phi3", **longrope(32))
    with pytest.raises(ModelError, match=r"longrope.* limit its context with max_model_len = 32"):
        TorchEngine.load(tmp_path, "phi3", device="cpu", num_blocks=60, num_threads=1)
    engine = TorchEngine.load(tmp_path, "phi3", device="cpu", num_blocks=60, num_threads=1, max_model_len=32)
    prompt = [5, 6, 7, 8]
    requests = [Request("r", prompt, SamplingParams(max_tokens=8, temperature=0.0))]
    output = EngineDriver(engine, seed=3, max_tokens=60).run(requests)["r"]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    assert output == logits.argmax(-1).tolist()
    engine.close()


def test_a_context_that_yarn_stretches_is_served(tmp_path: Path) -> None:
    """Of 256 tokens that the model was trained on, 1024."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
    model = save_model(tmp_path, "qwen2", rope_parameters=rope)
    engine = TorchEngine.load(tmp_path, "qwen2", device="cpu", num_blocks=80, num_threads=1)
    assert engine.spec.max_model_len == 1024
    prompt = [2 + number * 7 % 290 for number in range(400)]
    requests = [Request("r", prompt, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))]
    output = EngineDriver(engine, seed=3, max_tokens=60).run(requests)["r"]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    assert output == logits.argmax(-1).tolist()
    engine.close()


@pytest.mark.parametrize(
    ("config", "max_model_len", "said"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 100}, 200, "= 100"),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 64}, 65, "= 64"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}, "max_position_embeddings": 9}, 10, "= 9"),
        ({"text_config": {"layer_types": ["chunked_attention"], "attention_chunk_size": 64}}, 65, "= 64"),
        ({"layer_types": ["chunked_attention"], "attention_chunk_size": 64}, 64, ""),
        ({"layer_types": ["full_attention"], "attention_chunk_size": 64}, 65, ""),
        ({"text_config": {"attn_temperature_tuning": True, "floor_scale": 8192}}, 64, "attn_temperature_tuning"),
        ({"attn_temperature_tuning": False}, 64, ""),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64}}, 256, ""),
        ({"rope_scaling": None, "max_position_embeddings": 64}, 128, ""),
    ],
)
def test_what_is_not_exact_is_known_by_the_configuration(config: dict[str, Any], max_model_len: int, said: str) -> None:
    why = why_not_exact(config, max_model_len)
    assert bool(why) is bool(said) and said in why


def test_attention_that_is_asked_twice_in_a_layer_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "diffllama")
    with pytest.raises(ModelError, match="DiffLlamaAttention attends more than once"):
        TorchEngine.load(tmp_path, "diffllama", device="cpu", num_blocks=60, num_threads=1)
