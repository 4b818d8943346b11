"""Text to token ids and back, for a prepared model folder; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from shared.errors import ChatTemplateError, ModelError
from shared.text.chat_template import ChatTemplate, find_templates
from shared.text.model_folder import read_json
from shared.text.token_bytes import TokenBytes
from shared.text.tool_format import BEGINS, tool_format_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

REPLACEMENT = "\ufffd"  # what decoding shows for bytes that are not UTF-8, or not yet
MAX_UTF8_BYTES = 4  # of one character, each perhaps a token of its own
MAX_PENDING_TOKENS = 16  # an unfinished character spans fewer tokens; beyond this the bytes are broken

Dicts = Sequence[Mapping[str, Any]]  # messages or tools, as templates take them


class Tokenizer:
    """The tokenizer and chat template of one model folder. Safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None,
        template_tokens: Mapping[str, str],
        tool_template: str | None = None,
    ):
        """``tool_template``: for conversations with tools, where the model has one of its own for them."""
        self._backend = backend
        self._template_tokens = dict(template_tokens)
        self._template = ChatTemplate(chat_template) if chat_template is not None else None
        self._tool_template = ChatTemplate(tool_template) if tool_template is not None else self._template
        self.tool_format = tool_format_of(tool_template or chat_template or "")
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        mark = None if self.tool_format is None else BEGINS[self.tool_format]
        special = {added[token_id].content: token_id for token_id in self._special_ids}
        self.call_token_id = None if mark is None else special.get(mark)  # where the mark of calls is a special token
        self._bytes = TokenBytes(backend)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises ModelError."""
        folder = Path(path)
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        config_path = folder / "tokenizer_config.json"
        config = read_json(config_path) if config_path.exists() else {}
        template, tool_template = _find_chat_templates(folder, config)
        try:
            return cls(backend, template, _named_tokens(config), tool_template)
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from error

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in the text are recognised as such."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def apply_chat_template(self, messages: Dicts, tools: Dicts | None = None) -> list[int]:
        """Token ids of a conversation to go on with. Raises ChatTemplateError where the template refuses it."""
        return self.encode(self.render_chat(messages, tools), add_special_tokens=False)

    def render_chat(self, messages: Dicts, tools: Dicts | None = None) -> str:
        """The conversation as the model's prompt. Raises ChatTemplateError."""
        template = self._template if tools is None else self._tool_template
        if template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions")
        tokens = self._template_tokens
        return template.render(messages=messages, add_generation_prompt=True, tools=tools, **tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What the token alone stands for, special ones by their name."""
        return self._bytes.of(token_id)

    @cached_property
    def for_grammars(self) -> LLTokenizer:
        """The same vocabulary as grammars are matched with; takes a moment. Raises ModelError."""
        from llguidance import LLTokenizer  # late: most processes never need it

        try:
            return LLTokenizer(self._backend.to_str())
        except ValueError as error:
            raise ModelError(f"this model's tokenizer cannot be matched with a grammar: {error}") from error

    def detokenizer(self, stop: Sequence[str] = (), shows_calls: bool = False) -> IncrementalDetokenizer:
        """For one stream of tokens, ended by the first ``stop`` string. ``shows_calls``: with the mark of calls."""
        hidden_ids = self._special_ids - {self.call_token_id} if shows_calls else self._special_ids
        return IncrementalDetokenizer(self._backend, hidden_ids, stop)


class IncrementalDetokenizer:
    """Text of a growing list of tokens, given out as soon as no later token can change it.

    Everything that ``push`` and ``finish`` return, joined, is the decoded text of all tokens up to a stop string,
    however the tokens are cut into pushes. Where stop strings overlap, the one that is complete first counts.
    """

    def __init__(self, backend: tokenizers.Tokenizer, hidden_ids: frozenset[int], stop: Sequence[str]) -> None:
        self.stopped = False
        self.num_decoded = 0  # characters that are known, those that are held back included
        self.hidden_ids = hidden_ids  # tokens without text
        self._stream = _TokenStream(backend, hidden_ids)
        self._stop = tuple(stop)
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is safe to show now; empty once stopped."""
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
        text = self._before_stop(self._held + self._stream.finish())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _before_stop(self, text: str) -> str:
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
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


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def _find_chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The template of conversations, and the one for those with tools where it is another. Raises ModelError."""
    beside = folder / "chat_template.jinja"
    if not beside.exists():
        return find_templates(config)
    try:
        return beside.read_text(encoding="utf-8"), None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{beside} cannot be read: {error}") from error


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, which templates write out."""
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
