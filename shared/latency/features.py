"""The features of a batch, as running sums, so that the marginal cost of one more request is O(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import Count

Pairs = Annotated[int, Meta(ge=0, le=10**18)]  # two prompts of a million tokens have more than a ``Count`` may be


def attention_pairs(num_tokens: int, num_computed_tokens: int) -> int:
    """Query-key pairs that attention computes for a chunk: each token with all before it and itself."""
    return num_tokens * num_computed_tokens + num_tokens * (num_tokens + 1) // 2


class BatchFeatures(msgspec.Struct, array_like=True, gc=False):
    """Eq. 1 of HyGen (section 4.2) as sums over a batch, one sum more, and the longest decode.

    ``decode_kv_tokens`` is S_d read as the KV tokens that the decodes read, their own included: the number of
    decode tokens is already N_d. ``prefill_pairs`` is ours: Eq. 1 does not tell how much context a prefill chunk
    attends to, and a prompt's last chunk takes longer than its first. ``longest_decode`` is max(L) of Echo's Eq. 7;
    whoever does not tell it leaves it 0. A maximum cannot be taken back as a sum can: where requests leave again, it is
    a ``shared.latency.revisable.RevisableFeatures``.
    """

    prefill_tokens: Count = 0  # S_p
    prefill_requests: Count = 0  # N_p
    decode_kv_tokens: Count = 0  # S_d
    decode_requests: Count = 0  # N_d
    prefill_pairs: Pairs = 0  # query-key pairs of the prefill chunks, see attention_pairs
    longest_decode: Count = 0  # KV tokens that the decode with the longest context reads

    def add_prefill(self, num_tokens: int, num_computed_tokens: int) -> None:
        """Count one prefill chunk over ``num_computed_tokens`` tokens of KV that are there."""
        self.prefill_tokens += num_tokens
        self.prefill_requests += 1
        self.prefill_pairs += attention_pairs(num_tokens, num_computed_tokens)

    def add_decode(self, context_len: int) -> None:
        """Count one decode that reads ``context_len`` KV tokens."""
        self.decode_kv_tokens += context_len
        self.decode_requests += 1
        if context_len > self.longest_decode:
            self.longest_decode = context_len

    def add_decodes(self, context_lens: Sequence[int]) -> None:
        """Count several decodes that read so many KV tokens each."""
        self.decode_kv_tokens += sum(context_lens)
        self.decode_requests += len(context_lens)
        self.longest_decode = max(self.longest_decode, max(context_lens, default=0))

    def decodes(self, num_more: int = 0, context_len: int = 0) -> BatchFeatures:
        """Its decodes alone, with so many more that each read ``context_len`` KV tokens; a new one."""
        longest = max(self.longest_decode, context_len if num_more else 0)
        kv_tokens = self.decode_kv_tokens + num_more * context_len
        return BatchFeatures(0, 0, kv_tokens, self.decode_requests + num_more, 0, longest)

    def add_scheduled(self, num_tokens: int, num_computed_tokens: int) -> None:
        """Count what a step computes for one request: one token over KV that is there is a decode, the rest prefill."""
        if num_tokens == 1 and num_computed_tokens > 0:
            self.decode_kv_tokens += num_computed_tokens + 1  # add_decode, which would take as long again
            self.decode_requests += 1
            if num_computed_tokens >= self.longest_decode:
                self.longest_decode = num_computed_tokens + 1
        else:
            self.add_prefill(num_tokens, num_computed_tokens)

    def add_all(self, scheduled: Sequence[tuple[int, int]]) -> None:
        """``add_scheduled`` for each: tokens, and computed tokens before them."""
        context_lens = [num_computed + 1 for num_tokens, num_computed in scheduled if num_tokens == 1 and num_computed]
        self.add_decodes(context_lens)
        if len(context_lens) < len(scheduled):
            for num_tokens, num_computed in scheduled:
                if num_tokens != 1 or not num_computed:
                    self.add_prefill(num_tokens, num_computed)

    @property
    def sums(self) -> tuple[int, int, int, int, int]:
        """All of them, in the order of the fields: equal batches have equal ones."""
        return (
            self.prefill_tokens,
            self.prefill_requests,
            self.decode_kv_tokens,
            self.decode_requests,
            self.prefill_pairs,
        )

    @property
    def is_empty(self) -> bool:
        return self.prefill_requests == 0 and self.decode_requests == 0
