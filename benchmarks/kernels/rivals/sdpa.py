"""torch's own attention over keys and values that lie in one piece for each sequence: without pages, what has been
gathered is not counted."""

import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from benchmarks.kernels.work import Attention, Scheduled, Work
from kernels.slots import slots_of


def attention(work: Work) -> Attention:
    """One call for the sequences of one shape that follow one another."""
    calls, row = [], 0
    for (computed, new), group in itertools.groupby(work.sequences, key=_part):
        sequences = list(group)
        keys, values = _gathered(work, sequences)
        rows = work.query[row : row + len(sequences) * new]
        query = rows.view(len(sequences), new, *rows.shape[1:]).transpose(1, 2)
        mask = causal_lower_right(new, computed + new) if new > 1 else None
        attend = partial(F.scaled_dot_product_attention, attn_mask=mask, scale=work.scale, enable_gqa=True)
        calls.append(partial(attend, query, keys, values))
        row += len(rows)

    def attended() -> torch.Tensor:
        outs = [call().transpose(1, 2).flatten(0, 1) for call in calls]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    return attended


def _part(sequence: Scheduled) -> tuple[int, int]:
    return sequence.num_computed_tokens, len(sequence.token_ids)


def _gathered(work: Work, sequences: list[Scheduled]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, [num_sequences, num_kv_heads, seq_len, head_dim], of sequences of one length."""
    block_size = work.kv_cache.shape[1]
    positions = torch.arange(sum(_part(sequences[0]))).numpy()
    slots = torch.stack(
        [
            torch.from_numpy(slots_of(torch.tensor(s.block_table).numpy(), positions, block_size, s.fills_right))
            for s in sequences
        ]
    )
    kv = work.kv_cache.flatten(0, 1)[slots.to(work.kv_cache.device)].transpose(1, 2)
    keys, values = (half.contiguous() for half in kv.chunk(2, -1))
    return keys, values
