"""Linear layers whose weights are stored in oneDNN's own blocked order.

On CPU, torch's linear multiplies float32 with MKL from row-major weights. oneDNN on weights that were reordered once,
as torch's compiler has it, is 2 to 5 times as fast on AMD processors (benchmarks/engine/engine_speed.py compares).
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""``x @ weight.T + bias`` for inference: [..., num_rows, in_features], at least one row, gives [..., num_rows,
out_features]."""

LinearSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The same of [num_rows, in_features] added to a residual [num_rows, out_features], in its place; returns it."""


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """On a CPU, by oneDNN. ``weight`` [out_features, in_features] is copied."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    detached = None if bias is None else bias.detach()
    product = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[-2]
        padding = padded_rows(num_rows) - num_rows
        if not padding:
            return product(x, packed, detached, "none", [], "")  # type: ignore[no-any-return]
        padded: torch.Tensor = product(F.pad(x, (0, 0, 0, padding)), packed, detached, "none", [], "")
        return padded[..., :num_rows, :]

    return linear


def padded_rows(num_rows: int) -> int:
    """As many, or up to an eighth more: for each number of rows oneDNN generates code, and keeps half a megabyte."""
    step = 1 << max(0, (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """On any device, by torch. ``weight`` [out_features, in_features] is kept as it is."""
    return partial(F.linear, weight=weight.detach(), bias=None if bias is None else bias.detach())


def packed_sum(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearSum:
    """As ``packed_linear``."""
    product = packed_linear(weight, bias)
    return lambda x, residual: residual.add_(product(x))


def plain_sum(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearSum:
    """As ``plain_linear``; without a bias the sum is a part of the product."""
    if bias is not None:
        product = plain_linear(weight, bias)
        return lambda x, residual: residual.add_(product(x))
    columns = weight.detach().t()
    return lambda x, residual: residual.addmm_(x, columns)


class PackedModule(torch.nn.Module):
    """In the place of a torch.nn.Linear."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = packed_linear(linear.weight, linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed(x) if x.numel() else x.new_empty(*x.shape[:-1], self.out_features)


def pack_linears(model: torch.nn.Module) -> None:
    """Replace every plain Linear of ``model`` by a PackedModule, freeing the weights that only it held."""
    linears = [(name, module) for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    for name, linear in linears:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, PackedModule(linear))


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch packs weights there, and multiplies by them correctly."""
    if device.type != "cpu":
        return False
    linear = torch.nn.Linear(48, 40, dtype=dtype)
    x = torch.linspace(-1, 1, 3 * 48, dtype=dtype).view(3, 48)
    try:
        packed = packed_linear(linear.weight, linear.bias)(x)
    except (AttributeError, RuntimeError):  # no such operation in this build of torch
        return False
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    return torch.allclose(packed.float(), F.linear(x, linear.weight, linear.bias).float(), atol=tolerance)
