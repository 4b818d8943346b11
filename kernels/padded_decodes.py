"""Decodes as a recorded forward pass reads them: always in the same memory, padded to the recorded batch size.

A row of padding reads no KV (its sequence has no tokens) and writes none (its slot is -1), so its attention is 0. How
attention is cut is recorded too, for the longest sequence that may come: programs with nothing to read end at once.
"""

import numpy as np
import numpy.typing as npt
import torch

from kernels.gpu.batch import PagedBatch, StaticInputs, gpu_of, upload
from kernels.paged_attention import AttentionMetadata
from kernels.slots import Ints, StepLayout


class PaddedDecodes:
    """Input tokens and attention metadata of up to ``max_decodes`` decodes, on the device."""

    def __init__(self, max_decodes: int, max_seq_len: int, block_size: int, device: torch.device) -> None:
        """Everything is padding at first."""
        self._max_decodes = max_decodes
        self._max_seq_len = max_seq_len
        self._inputs = StaticInputs(_padding(max_decodes), device)
        self._input_ids, self._positions, self._slots, self._seq_lens, self._fills_right = self._inputs.tensors
        max_blocks = -(-max_seq_len // block_size)
        self._block_tables = torch.zeros(max_decodes, max_blocks, dtype=torch.int32, device=device)
        self._query_start_loc = torch.arange(max_decodes + 1, dtype=torch.int32, device=device)

    def holds(self, layout: StepLayout) -> bool:
        """Whether the step is of decodes alone, and no more or longer ones than there is room for."""
        return (
            layout.num_decodes == len(layout.num_new) <= self._max_decodes
            and int(layout.num_computed.max()) < self._max_seq_len
        )

    def load(self, layout: StepLayout, input_ids: Ints) -> None:
        """Take the place of what was there. ``input_ids`` [num_sequences]; the host waits for nothing."""
        count = len(layout.num_new)
        self._inputs.load((input_ids, layout.positions, layout.slot_mapping, layout.seq_lens, layout.fills_right))
        [tables] = upload((layout.stacked_tables(),), self._block_tables.device)
        self._block_tables[:count, : tables.shape[1]].copy_(tables)

    def rows(self, count: int) -> tuple[torch.Tensor, AttentionMetadata]:
        """Input ids [count] and the metadata of the first ``count`` rows: views that ``load`` changes."""
        batch = PagedBatch(
            self._block_tables[:count],
            self._seq_lens[:count],
            self._query_start_loc[: count + 1],
            self._fills_right[:count],
            gpu_of(self._block_tables.device),
            num_decodes=count,
            num_new=np.ones(count, np.int64),
            num_computed=np.full(count, self._max_seq_len - 1),
        )
        metadata = AttentionMetadata(self._positions[:count], self._slots[:count], batch)
        return self._input_ids[:count], metadata


def _padding(count: int) -> list[Ints | npt.NDArray[np.int32]]:
    """Input ids, positions, slots; lengths and directions as the kernels read them."""
    zeros, lens = np.zeros(count, np.int64), np.zeros(count, np.int32)
    return [zeros, zeros, np.full(count, -1, np.int64), lens, lens]
