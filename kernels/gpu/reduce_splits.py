"""Combine the partial results that the splits of one query row left behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.tiles import MAX_SPLITS, Tiles


@dataclass(frozen=True, slots=True)
class Target:
    """Where the programs of some tiles leave their rows: in ``out`` itself, or in partial results beside it."""

    out: torch.Tensor  # [num_tokens, num_heads, v_dim]: all rows of the batch
    tiles: Tiles
    rows: torch.Tensor  # ``out``, or [num_rows, num_heads, num_splits, v_dim], float32
    lse: torch.Tensor | None  # [num_rows, num_heads, num_splits], float32; None without splits

    @classmethod
    def of(cls, out: torch.Tensor, tiles: Tiles, num_splits: int) -> Target:
        if num_splits == 1:
            return cls(out, tiles, out, None)
        shape = (tiles.num_rows, out.shape[1], num_splits)
        partial = out.new_empty(*shape, out.shape[2], dtype=torch.float32)
        return cls(out, tiles, partial, out.new_empty(*shape, dtype=torch.float32))

    @property
    def first_row(self) -> int:
        """Of the batch, that ``rows`` begins with."""
        return 0 if self.lse is None else self.tiles.first_row

    def reduce(self) -> None:
        """Once the programs are launched."""
        if self.lse is not None:
            first = self.tiles.first_row
            reduce_splits(self.rows, self.lse, self.out[first : first + self.tiles.num_rows])


def reduce_splits(partial: torch.Tensor, lse: torch.Tensor, out: torch.Tensor) -> None:
    """``partial`` [num_rows, num_heads, num_splits, v_dim], each split's own softmax-weighted mean, float32; ``lse``
    [num_rows, num_heads, num_splits], log2 of each split's sum of weights, -inf where a split read nothing. Writes
    ``out`` [num_rows, num_heads, v_dim], contiguous (flash-decoding's second step, Dao et al. 2023)."""
    num_rows, num_heads, num_splits, v_dim = partial.shape
    assert num_splits <= MAX_SPLITS
    # One width for any number of splits: what is masked is not loaded, and a new number compiles nothing.
    reduce_splits_kernel[(num_rows * num_heads,)](
        partial,
        lse,
        out,
        num_splits,
        V_DIM=v_dim,
        V_PAD=triton.next_power_of_2(v_dim),
        SPLITS_PAD=MAX_SPLITS,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_splits"])
def reduce_splits_kernel(
    partial, lse, out, num_splits, V_DIM: tl.constexpr, V_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PAD)
    lane = tl.arange(0, V_PAD)
    split_lse = tl.load(lse + row * num_splits + split, mask=split < num_splits, other=float("-inf"))
    # A row that pads a recorded batch reads nothing in any split: its result is 0, not NaN.
    top = tl.max(split_lse, axis=0)
    weights = tl.math.exp2(split_lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, axis=0)
    mask = (split < num_splits)[:, None] & (lane < V_DIM)[None, :]
    rows = tl.load(partial + (row * num_splits + split)[:, None] * V_DIM + lane[None, :], mask=mask, other=0.0)
    mean = tl.sum(rows * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * V_DIM + lane, mean.to(out.dtype.element_ty), mask=lane < V_DIM)
