"""Token ids to text as they come, up to a stop string."""

import math
from collections.abc import Sequence

from shared.text.overlap import overlap
from shared.text.token_stream import TokenStream


class IncrementalDetokenizer:
    """Text of a growing list of tokens, given out as soon as no later token can change it.

    Everything that ``push`` and ``finish`` return, joined, is the decoded text of all tokens up to a stop string,
    however the tokens are cut into pushes. Where stop strings overlap, the one that is complete first counts.
    """

    def __init__(
        self, stream: TokenStream, stop: Sequence[str], min_tokens: int = 0, includes_stop: bool = False
    ) -> None:
        """``stream``: before its first token; ``min_tokens``: a stop string that is complete within so many tokens does
        not count; ``includes_stop``: the one that ends the text is a part of it."""
        self.stopped = False
        self.num_decoded = 0  # characters that are known, those that are held back included
        self.hidden_ids = stream.hidden_ids  # tokens without text
        self._stream = stream
        self._stop = tuple(stop)
        self._includes_stop = includes_stop
        self._num_free = min_tokens if stop else 0  # tokens to come
        self._num_free_characters: float = 0
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is safe to show now; empty once stopped."""
        free, others = token_ids[: self._num_free], token_ids[self._num_free :]
        self._num_free -= len(free)
        text = ""
        for token_id in free:  # one by one, so that nothing hangs on how they are cut into pushes
            self._num_free_characters = math.inf
            text += self._push([token_id])
            self._num_free_characters = self.num_decoded
        return text + self._push(others)

    def _push(self, token_ids: Sequence[int]) -> str:
        if self.stopped:
            return ""
        text = self._stream.push(token_ids)
        self.num_decoded += len(text)
        if not self._stop or not text:
            return text
        return self._before_stop(self._held + text)

    def finish(self) -> str:
        """The rest of the text: an unfinished character as U+FFFD, and what only might have become a stop string."""
        if self.stopped:
            return ""
        rest = self._stream.finish()
        self.num_decoded += len(rest)
        text = self._before_stop(self._held + rest)
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _before_stop(self, text: str) -> str:
        """``text`` ends where all that is known does."""
        num_free = int(min(len(text), max(0, self._num_free_characters - (self.num_decoded - len(text)))))
        ends = []
        for stop in self._stop:
            at = text.find(stop, max(0, num_free - len(stop) + 1))
            if at >= 0:
                ends.append((at + len(stop), at))
        if ends:
            self.stopped, self._held = True, ""
            end, at = min(ends)
            return text[: end if self._includes_stop else at]
        num_held = max((overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]
