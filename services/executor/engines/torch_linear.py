"""Linear layers whose weights are stored in oneDNN's own blocked order.

On CPU, torch's linear multiplies float32 with MKL from row-major weights. oneDNN on weights that were reordered once
is 2 to 5 times as fast at every batch size on AMD processors (benchmarks/engine.py compares). It is the path that
torch's own compiler takes for frozen weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class PackedLinear(torch.nn.Module):
    """``x @ weight.T + bias`` for inference on CPU; x is [..., in_features]."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().contiguous()
        self.weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        out: torch.Tensor = self._linear(x, self.weight, self.bias, "none", [], "")
        return out


def pack_linears(model: torch.nn.Module) -> int:
    """Replace every plain Linear of ``model`` by a PackedLinear, freeing the weights that only it held. Returns how
    many were replaced: none where this build of torch cannot pack, or packs wrongly."""
    if not _can_pack(next(model.parameters()).dtype):
        return 0
    linears = [(name, module) for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    for name, linear in linears:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, PackedLinear(linear))
    return len(linears)


def _can_pack(dtype: torch.dtype) -> bool:
    linear = torch.nn.Linear(48, 40, dtype=dtype)
    x = torch.linspace(-1, 1, 3 * 48, dtype=dtype).view(1, 3, 48)
    try:
        packed = PackedLinear(linear)(x)
    except (AttributeError, RuntimeError):  # no such operation in this build of torch
        return False
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    return bool(torch.allclose(packed.float(), F.linear(x, linear.weight, linear.bias).float(), atol=tolerance))
