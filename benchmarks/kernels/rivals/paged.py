"""A step as other libraries' paged kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.kernels.work import Work
from kernels.slots import StepLayout


@dataclass(frozen=True, slots=True)
class PagedStep:
    """Keys and values are copies of ours, each in one piece; all sequences fill their blocks from the left."""

    keys: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    values: torch.Tensor  # likewise
    block_tables: torch.Tensor  # [num_sequences, longest table], int32
    seq_lens: torch.Tensor  # [num_sequences], int32, the new tokens included
    query_start_loc: torch.Tensor  # [num_sequences + 1], int32
    longest_query: int
    longest_sequence: int

    @classmethod
    def of(cls, work: Work) -> PagedStep:
        layout = StepLayout.of(work.sequences, *work.kv_cache.shape[:2])
        device = work.kv_cache.device
        keys, values = (half.contiguous() for half in work.kv_cache.chunk(2, -1))
        seq_lens = torch.from_numpy(layout.seq_lens).int()
        query_start_loc = torch.from_numpy(layout.row_ends).int()
        return cls(
            keys,
            values,
            torch.from_numpy(layout.stacked_tables()).to(device),
            seq_lens.to(device),
            torch.cat((torch.zeros(1, dtype=torch.int32), query_start_loc)).to(device),
            int(layout.num_new.max()),
            int(seq_lens.max()),
        )
