"""Token ids to text as they come, up to a stop string."""

import math
from collections.abc import Sequence

import tokenizers

from shared.text.overlap import overlap

REPLACEMENT = "\ufffd"  # what decoding shows for bytes that are not UTF-8, or not yet
MAX_UTF8_BYTES = 4  # of one character, each perhaps a token of its own
MAX_PENDING_TOKENS = 16  # an unfinished character spans fewer tokens; beyond this the bytes are broken


class IncrementalDetokenizer:
    """Text of a growing list of tokens, given out as soon as no later token can change it.

    Everything that ``push`` and ``finish`` return, joined, is the decoded text of all tokens up to a stop string,
    however the tokens are cut into pushes. Where stop strings overlap, the one that is complete first counts.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        hidden_ids: frozenset[int],
        stop: Sequence[str],
        min_tokens: int = 0,
        includes_stop: bool = False,
    ) -> None:
        """``min_tokens``: a stop string that is complete within so many tokens does not count; ``includes_stop``: the
        one that ends the text is a part of it."""
        self.stopped = False
        self.num_decoded = 0  # characters that are known, those that are held back included
        self.hidden_ids = hidden_ids  # tokens without text
        self._stream = _TokenStream(backend, hidden_ids)
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


class _TokenStream:
    """Decodes a window of recent tokens: those given out last, as context for decoders that look at the token
    before, then those pending. ``tokenizers.DecodeStream`` does the same, but cannot give out the rest at the end,
    fails where a run of byte tokens turns invalid, and never forgets tokens that have no text."""

    def __init__(self, backend: tokenizers.Tokenizer, hidden_ids: frozenset[int]) -> None:
        self._backend = backend
        self._hidden_ids = hidden_ids
        self._window: list[int] = []
        self._num_shown = 0
        self._shown = ""

    def push(self, token_ids: Sequence[int]) -> str:
        pending = [token_id for token_id in token_ids if token_id not in self._hidden_ids]
        if not pending:
            return ""
        self._window += pending
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._show(text, len(self._window))
        return self._push_unfinished(text)

    def finish(self) -> str:
        return self._show(self._decode(self._window), len(self._window))

    def _push_unfinished(self, text: str) -> str:
        """The last character may lack bytes that are in later tokens."""
        num_pending = len(self._window) - self._num_shown
        for num_kept in range(1, min(num_pending, MAX_UTF8_BYTES)):
            cut = len(self._window) - num_kept
            clean = self._decode(self._window[:cut])
            if not clean.endswith(REPLACEMENT):
                return self._show(clean, cut)
        if num_pending <= MAX_PENDING_TOKENS:
            return ""
        cut = self._last_clean_cut(text)
        return self._show(self._decode(self._window[:cut]), cut)

    def _show(self, text: str, cut: int) -> str:
        """Give out window[:cut], whose text this is."""
        if text.startswith(self._shown):
            new = text[len(self._shown) :]
        else:
            new = self._decode(self._window[self._num_shown : cut])
        if not new and cut - self._num_shown <= MAX_PENDING_TOKENS:
            return ""
        if cut > self._num_shown:
            del self._window[: self._num_shown]
            self._num_shown = cut - self._num_shown
            self._shown = self._decode(self._window[: self._num_shown])
        return new

    def _last_clean_cut(self, text: str) -> int:
        """The last place in the window that lies between characters; its end where there is none."""
        for cut in range(len(self._window) - 1, self._num_shown, -1):
            if self._decode(self._window[:cut]) + self._decode(self._window[cut:]) == text:
                return cut
        return len(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)  # those to skip are left out already
        return text
