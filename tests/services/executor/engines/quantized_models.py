"""A model's weights rounded on the spot, in the files of GPTQ, AWQ and FP8, and once more as full weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 64  # input features that share a scale
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the output features within an int32
PLAIN_ORDER = tuple(range(8))
FP8_MAX = 448.0

Tensors = dict[str, torch.Tensor]
Rounded = tuple[Tensors, torch.Tensor]  # what a file has in place of a weight, and the weight that it stands for


def gptq(weight: torch.Tensor) -> Rounded:
    """Four bits, symmetric: values of -8 to 7 are kept as 0 to 15, input features packed; zeros are kept less one."""
    groups = weight.T.reshape(-1, GROUP, weight.shape[0])  # [groups, in, out]
    scales = (groups.abs().amax(dim=1) / 7).half().float()
    kept = (groups / scales[:, None]).round().clamp(-8, 7) + 8
    stands_for = ((kept - 8) * scales[:, None]).reshape(-1, weight.shape[0]).T
    num_inputs = weight.shape[1]
    return {
        "qweight": _packed(kept.reshape(num_inputs, -1).T, PLAIN_ORDER).T.contiguous(),
        "qzeros": _packed(torch.full_like(scales, 7), PLAIN_ORDER),
        "scales": scales.half(),
        "g_idx": (torch.arange(num_inputs) // GROUP).int(),
    }, stands_for


def awq(weight: torch.Tensor) -> Rounded:
    """Four bits with a zero point, output features packed in AWQ's order."""
    groups = weight.T.reshape(-1, GROUP, weight.shape[0])
    low, high = groups.amin(dim=1).clamp(max=0), groups.amax(dim=1).clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-5).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    kept = ((groups / scales[:, None]).round() + zeros[:, None]).clamp(0, 15)
    stands_for = ((kept - zeros[:, None]) * scales[:, None]).reshape(-1, weight.shape[0]).T
    return {
        "qweight": _packed(kept.reshape(weight.shape[1], -1), AWQ_ORDER),
        "qzeros": _packed(zeros, AWQ_ORDER),
        "scales": scales.half(),
    }, stands_for


def fp8(weight: torch.Tensor) -> Rounded:
    """Eight-bit floats with a scale for the whole tensor."""
    scale = weight.abs().max() / FP8_MAX
    kept = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": kept, "weight_scale": scale.reshape(1)}, kept.float() * scale


METHODS: dict[str, tuple[Callable[[torch.Tensor], Rounded], dict[str, Any]]] = {
    "gptq": (gptq, {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}),
    "awq": (awq, {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "fp8": (fp8, {"activation_scheme": "dynamic"}),
}


def write_rounded(source: Path, method: str, quantized: Path, full: Path) -> None:
    """Of the model in ``source``, one file of weights: both folders can be loaded, and mean the same numbers."""
    rounded_by, config = METHODS[method]
    kept: Tensors = {}
    meant: Tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            rounded, meant[name] = rounded_by(weight.float())
            kept |= {f"{name.removesuffix('weight')}{part}": tensor.contiguous() for part, tensor in rounded.items()}
        else:
            kept[name] = meant[name] = weight
    _write(source, quantized, kept, {"quantization_config": {"quant_method": method, **config}})
    _write(source, full, {name: weight.contiguous() for name, weight in meant.items()}, {})


def _packed(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """[rows, columns] of 0 to 15 as [rows, columns / 8] of int32."""
    eights = values.to(torch.int64).reshape(values.shape[0], -1, 8)[:, :, list(order)]
    shifts = 4 * torch.arange(8)
    packed = (eights << shifts).sum(dim=2)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def _write(source: Path, folder: Path, tensors: Tensors, changes: dict[str, Any]) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "slackwater.json"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
