"""LoRA adapters in their folders: which a model can run with, and what is said of the others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.executor.adapters import find_adapters, prepare_adapters, require_adapters
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.errors import ModelError
from tests.services.executor.engines.test_torch_models import save_model
from tests.services.executor.lora_adapters import ATTENTION, PREFIX, make_adapter, write_adapter

Q_PROJ = f"{PREFIX}model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", head_dim=32, eos_token_id=None, num_hidden_layers=2)
    return path


def refused(model: Path, folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        find_adapters(f"sql={folder}", model)
    return str(raised.value)


def test_what_is_in_a_folder_is_told(model: Path, tmp_path: Path) -> None:
    make_adapter(model, tmp_path / "a", 1)
    make_adapter(model, tmp_path / "b", 2, ATTENTION[:1], rank=24)
    first, second = prepare_adapters(f"sql={tmp_path / 'a'},chat={tmp_path / 'b'}", model, print)
    assert (first.name, first.folder, first.rank) == ("sql", tmp_path / "a", 8)
    assert first.modules == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert (second.name, second.rank, second.modules) == ("chat", 24, ("q_proj",))
    assert find_adapters("", model) == require_adapters("", model) == []


def test_one_that_is_not_there_is_refused(model: Path, tmp_path: Path) -> None:
    assert "no adapter 'sql': there is no folder" in refused(model, tmp_path / "missing")
    folder = make_adapter(model, tmp_path / "a", 1)
    (folder / "adapter_model.safetensors").rename(folder / "kept")
    assert refused(model, folder) == f"{folder} is no LoRA adapter: it has no adapter_model.safetensors"
    (folder / "kept").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").unlink()
    assert refused(model, folder) == f"{folder} is no LoRA adapter: it has no adapter_config.json"
    assert find_adapters("sql=nobody/nothing-here", model) == [], "a hub's, to be fetched"
    with pytest.raises(ModelError, match="the adapter 'sql' is not here: nobody/nothing-here was not fetched"):
        require_adapters("sql=nobody/nothing-here", model)


def test_one_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_model(other, "llama", head_dim=32, num_hidden_layers=2, hidden_size=128)
    found = refused(model, make_adapter(other, tmp_path / "a", 1))
    assert (
        found.startswith("the adapter 'sql' cannot be run: it is one of another model: for model.layers.0.")
        and "128" in found
    )
    tensors = {f"{PREFIX}transformer.h.0.{factor}.weight": torch.zeros(8, 8) for factor in ("lora_A", "lora_B")}
    assert "has no transformer.h.0" in refused(model, write_adapter(tmp_path / "b", tensors))
    deeper = tmp_path / "deeper"
    save_model(deeper, "llama", head_dim=32, num_hidden_layers=3)
    assert "has no model.layers.2." in refused(model, make_adapter(deeper, tmp_path / "c", 1))
    assert len(find_adapters(f"sql={make_adapter(model, tmp_path / 'd', 1)}", deeper)) == 1, "of its first layers"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_dora": True}, "has use_dora, which vLLM does not run"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save"),
        ({"bias": "all"}, "has bias"),
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"lora_alpha": None}, "says no r, or no lora_alpha"),
    ],
)
def test_what_vllm_does_not_run_is_refused(config: dict[str, Any], said: str, model: Path, tmp_path: Path) -> None:
    assert said in refused(model, make_adapter(model, tmp_path / "a", 1, **config))


def test_matrices_that_make_no_adapter_are_refused(model: Path, tmp_path: Path) -> None:
    large = refused(model, make_adapter(model, tmp_path / "a", 1, ATTENTION[:1], rank=513))
    assert large.endswith("its rank is 513, and vLLM takes ranks up to 512")
    low, high = f"{Q_PROJ}.lora_A.weight", f"{Q_PROJ}.lora_B.weight"
    half = write_adapter(tmp_path / "b", {low: torch.zeros(8, 64)})
    assert "its two matrices for model.layers.0.self_attn.q_proj do not go together" in refused(model, half)
    unlike = write_adapter(tmp_path / "c", {low: torch.zeros(8, 64), high: torch.zeros(64, 4)})
    assert "do not go together" in refused(model, unlike)
    head = f"{PREFIX}lm_head.lora_A.weight"
    assert f"it changes {head}: only matrices within the layers" in refused(
        model, write_adapter(tmp_path / "d", {head: torch.zeros(8, 64)})
    )
    assert "is empty" in refused(model, write_adapter(tmp_path / "e", {}))
    broken = make_adapter(model, tmp_path / "f", 1)
    (broken / "adapter_model.safetensors").write_bytes(b"nothing")
    assert "cannot be read" in refused(model, broken)


def test_a_quantized_model_is_told_by_its_modules(model: Path, tmp_path: Path) -> None:
    """Its matrices have other shapes and names."""
    adapter = make_adapter(model, tmp_path / "a", 1)
    quantized = tmp_path / "quantized"
    quantized.mkdir()
    weights = load_file(model / "model.safetensors")
    packed = {name.replace("_proj.weight", "_proj.qweight"): tensor for name, tensor in weights.items()}
    save_file(packed, quantized / "model.safetensors")
    assert len(find_adapters(f"sql={adapter}", quantized)) == 1


def test_they_are_looked_at_before_a_stack_starts(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.executor.prepare_model", "--engine", "vllm", "--lora-modules"]
    done = subprocess.run([*command, f"sql={tmp_path}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {tmp_path} is no LoRA adapter: it has no adapter_config.json\n",
    )
    folder = make_adapter(model_folder, tmp_path / "a", 1, ATTENTION[:1])
    done = subprocess.run([*command, f"sql={folder}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{model_folder}\n")


def test_the_sim_engine_takes_their_names(model_folder: Path) -> None:
    settings = ExecutorSettings(str(model_folder), engine="sim", lora_modules="sql=./nowhere,chat=some/where")
    engine = load_engine(settings)
    plain = load_engine(ExecutorSettings(str(model_folder), engine="sim"))
    assert engine.spec.adapters == ("sql", "chat") and plain.spec.adapters == ()
    assert json.loads(json.dumps(engine.spec.device)) == plain.spec.device, "its steps take as long"
