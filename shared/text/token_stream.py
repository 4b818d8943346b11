"""Token ids to text, piece by piece."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import tokenizers

REPLACEMENT = "\ufffd"  # what decoding shows for bytes that are not UTF-8, or not yet
MAX_UTF8_BYTES = 4  # of one character, each perhaps a token of its own
MAX_PENDING_TOKENS = 16  # an unfinished character spans fewer tokens; beyond this the bytes are broken

EACH_BYTE = "slackwater-each-byte"  # of the bytes that are part of no character, as the library's decoders show them


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _replaced)


class TokenStream:
    """Decodes a window of recent tokens: those given out last, as context for decoders that look at the token
    before, then those pending. Tokens that are a byte each are put together here, since the library voids a whole run
    of them for one byte that fits nowhere, characters before it that were given out included.

    ``tokenizers.DecodeStream`` does the same, but cannot give out the rest at the end, fails where a run of byte tokens
    turns invalid, and never forgets tokens that have no text."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        hidden_ids: frozenset[int] = frozenset(),
        single_bytes: Mapping[int, int] | None = None,
        follows: Sequence[int] = (),
    ) -> None:
        """``hidden_ids``: tokens without text; ``single_bytes``: by its id, the byte that a token is; ``follows``: the
        last tokens of a text that this one goes on with. A character that they have begun comes with this one."""
        self.hidden_ids = hidden_ids
        self._backend = backend
        self._single_bytes = single_bytes or {}
        self._bytes = codecs.getincrementaldecoder("utf-8")(EACH_BYTE)
        self._window: list[int] = []
        self._num_shown = 0
        self._shown = ""
        self.push(follows)
        if len(self._window) - self._num_shown >= MAX_UTF8_BYTES:
            self._show_window()

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is whole by now."""
        shown = [token_id for token_id in token_ids if token_id not in self.hidden_ids]
        if not self._single_bytes:
            return self._push_texts(shown) if shown else ""
        runs = groupby(shown, key=self._single_bytes.__contains__)
        return "".join([self._push_bytes(run) if are_bytes else self._push_behind(run) for are_bytes, run in runs])

    def finish(self) -> str:
        """The rest: an unfinished character as U+FFFD."""
        return self._show_window() + self._bytes.decode(b"", final=True)

    def _push_bytes(self, run: Iterable[int]) -> str:
        before, token_ids = self._show_window(), list(run)
        self._window, self._num_shown, self._shown = token_ids[-1:], 1, self._decode(token_ids[-1:])
        return before + self._bytes.decode(bytes(self._single_bytes[token_id] for token_id in token_ids))

    def _push_behind(self, run: Iterable[int]) -> str:
        """What bytes before it have begun is not finished any more."""
        return self._bytes.decode(b"", final=True) + self._push_texts(run)

    def _push_texts(self, run: Iterable[int]) -> str:
        self._window += run
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._show(text, len(self._window))
        return self._push_unfinished(text)

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

    def _show_window(self) -> str:
        return self._show(self._decode(self._window), len(self._window))

    def _show(self, text: str, cut: int) -> str:
        """Give out window[:cut], whose text this is."""
        if text.startswith(self._shown):
            new = text[len(self._shown) :]
        else:
            new = self._decode(self._window[self._num_shown : cut])
        if not new and cut - self._num_shown <= MAX_PENDING_TOKENS:
            return ""
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
