"""LoRA adapters made on the spot: random ones that change what a model says, in the files that PEFT writes, and the
model with one of them in its weights."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK = 8
ALPHA = 16
PREFIX = "base_model.model."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
STRENGTH = 0.15  # of what it changes, against the weights


def make_adapter(
    model_folder: Path,
    folder: Path,
    seed: int,
    modules: Sequence[str] = ALL,
    rank: int = RANK,
    strength: float = STRENGTH,
    **config: Any,
) -> Path:
    """Of all layers of a model in one file; ``config``: of its adapter_config.json."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(model_folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in modules:
            continue
        num_outputs, num_inputs = weight.shape
        low = torch.randn(rank, num_inputs, generator=generator)
        high = torch.randn(num_outputs, rank, generator=generator)
        change = high @ low
        high *= strength * weight.float().norm() / (change.norm() * ALPHA / rank)
        tensors |= {f"{PREFIX}{module}.lora_A.weight": low, f"{PREFIX}{module}.lora_B.weight": high}
    return write_adapter(folder, tensors, r=rank, target_modules=list(modules), **config)


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    full = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": list(ALL)} | config
    (folder / "adapter_config.json").write_text(json.dumps(full))
    return folder


def merge(model_folder: Path, adapter: Path, folder: Path) -> Path:
    """A model folder with W + alpha / rank * B @ A in the place of each W."""
    shutil.copytree(model_folder, folder)
    weights, tensors = load_file(model_folder / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name in weights:
        key = f"{PREFIX}{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in tensors:
            change = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
            weights[name] = weights[name].float() + config["lora_alpha"] / config["r"] * change
    (folder / "model.safetensors").unlink()
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder
