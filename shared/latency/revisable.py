"""The features of a batch from which requests are taken out again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from shared.latency.features import BatchFeatures, attention_pairs


class RevisableFeatures(BatchFeatures, array_like=True, gc=False):
    """Keeps each decode's context length, so that the longest is known after any removal.

    An addition appends to a list, until the first removal sorts it; from then on additions and removals keep it sorted,
    in logarithmic time but for moving what stands behind. It is no message: what is told of a batch has no list.
    """

    context_lens: list[int] = msgspec.field(default_factory=list)  # of the decodes
    is_sorted: bool = False

    def __copy__(self) -> RevisableFeatures:
        """With a list of its own."""
        return RevisableFeatures(*self.sums, self.longest_decode, self.context_lens.copy(), self.is_sorted)

    def add_decode(self, context_len: int) -> None:
        self.decode_kv_tokens += context_len
        self.decode_requests += 1
        if context_len > self.longest_decode:
            self.longest_decode = context_len
        if self.is_sorted:
            insort(self.context_lens, context_len)
        else:
            self.context_lens.append(context_len)

    def add_decodes(self, context_lens: Sequence[int]) -> None:
        BatchFeatures.add_decodes(self, context_lens)
        self.context_lens.extend(context_lens)
        if self.is_sorted:
            self.context_lens.sort()

    def add_scheduled(self, num_tokens: int, num_computed_tokens: int) -> None:
        if num_tokens == 1 and num_computed_tokens > 0:
            self.add_decode(num_computed_tokens + 1)
        else:
            self.add_prefill(num_tokens, num_computed_tokens)

    def remove_scheduled(self, num_tokens: int, num_computed_tokens: int) -> None:
        """Take back what ``add_scheduled`` counted."""
        if num_tokens == 1 and num_computed_tokens > 0:
            self.remove_decode(num_computed_tokens + 1)
        else:
            self.remove_prefill(num_tokens, num_computed_tokens)

    def remove_prefill(self, num_tokens: int, num_computed_tokens: int) -> None:
        """Take one counted prefill chunk back."""
        self.prefill_tokens -= num_tokens
        self.prefill_requests -= 1
        self.prefill_pairs -= attention_pairs(num_tokens, num_computed_tokens)

    def remove_decode(self, context_len: int) -> None:
        """Take one counted decode back."""
        held = self.context_lens
        if not self.is_sorted:
            held.sort()
            self.is_sorted = True
        place = bisect_left(held, context_len)
        assert held[place : place + 1] == [context_len], f"no decode of {context_len} tokens is here"
        del held[place]
        self.decode_kv_tokens -= context_len
        self.decode_requests -= 1
        self.longest_decode = held[-1] if held else 0
