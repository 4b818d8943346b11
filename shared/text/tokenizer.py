"""Text to token ids and back, for a prepared model folder; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from shared.errors import ChatTemplateError, ModelError, TextTooLongError
from shared.text.chat_options import END_MARK, ChatOptions, up_to_final_message
from shared.text.chat_template import ChatTemplate, find_templates
from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.model_folder import ModelFacts, read_tokenizer_config
from shared.text.thinking import thinking_marks_of
from shared.text.token_bytes import TokenBytes
from shared.text.token_stream import TokenStream
from shared.text.tool_format import BEGINS, HERMES_END, ToolFormat, tool_format_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CHAT_DEFAULTS = ChatOptions()
USUAL_CHARACTERS = 8  # of a token, at most
CUT_TOKENS = 64  # of a text's beginning, which may be others in the whole, or fewer
TEMPLATE_FILES = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")

Dicts = Sequence[Mapping[str, Any]]  # messages or tools, as templates take them


class Tokenizer:
    """The tokenizer and chat template of one model folder. Safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None,
        template_tokens: Mapping[str, str],
        tool_template: str | None = None,
        eos_token_ids: Sequence[int] = (),
    ):
        """``tool_template``: for conversations with tools, where the model has one of its own for them."""
        self._backend = backend
        self._template_tokens = dict(template_tokens)
        self._template = ChatTemplate(chat_template) if chat_template is not None else None
        self._tool_template = ChatTemplate(tool_template) if tool_template is not None else self._template
        self._template_source = f"{chat_template or ''}{tool_template or ''}"
        self.tool_format = tool_format_of(tool_template or chat_template or "")
        self.thinking = thinking_marks_of(self._template_source)
        added = backend.get_added_tokens_decoder()
        shown = () if self.thinking is None else (self.thinking.begin, self.thinking.end)
        self._special_ids = frozenset(id for id, token in added.items() if token.special and token.content not in shown)
        mark = None if self.tool_format is None else BEGINS[self.tool_format]
        self._special = {token.content: token_id for token_id, token in added.items() if token.special}
        marks = (mark, HERMES_END) if self.tool_format is ToolFormat.HERMES else (mark,)
        self._call_ids = frozenset(self._special[each] for each in marks if each in self._special)
        self._bytes = TokenBytes(backend)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read tokenizer.json, what ``read_tokenizer_config`` reads, and the TEMPLATE_FILES. Raises ModelError."""
        folder = Path(path)
        backend = read_backend(folder)
        backend.no_truncation()
        backend.no_padding()
        config = read_tokenizer_config(folder)
        template, tool_template = _find_chat_templates(folder, config)
        eos_token_ids = _eos_token_ids(folder)
        try:
            return cls(backend, template, _named_tokens(config), tool_template, eos_token_ids)
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from error

    def encode(self, text: str, add_special_tokens: bool = True, most: int | None = None) -> list[int]:
        """Token ids of a text. Special tokens written out in the text are recognised as such. Other threads go on
        meanwhile, as they do not beside the library's ``encode``. Raises TextTooLongError for a long text that has more
        tokens than ``most``; of another one that has, all are returned."""
        if most is not None:
            self._require_short(text, most)
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _require_short(self, text: str, most: int) -> None:
        """The library takes some 300 bytes for a token, and a text may have one a character: no more of it is read than
        tells that it is too long."""
        num_characters = USUAL_CHARACTERS * most
        while num_characters < len(text):
            if len(self.encode(text[:num_characters], False)) > most + CUT_TOKENS:
                raise TextTooLongError(f"the text has more than {most} tokens")
            num_characters *= 2

    def num_before_text(self, token_ids: Sequence[int]) -> int:
        """How many tokens at a prompt's beginning are those that ``encode`` puts before every text."""
        return len(self._before_text) if tuple(token_ids[: len(self._before_text)]) == self._before_text else 0

    @cached_property
    def _before_text(self) -> tuple[int, ...]:
        encoded = self._backend.encode("a")
        are_of_text = [not is_special for is_special in encoded.special_tokens_mask]
        return tuple(encoded.ids[: are_of_text.index(True)] if True in are_of_text else encoded.ids)

    def apply_chat_template(
        self,
        messages: Dicts,
        tools: Dicts | None = None,
        options: ChatOptions = CHAT_DEFAULTS,
        most: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation to go on with. Raises ChatTemplateError where the template refuses it, and
        TextTooLongError as ``encode``."""
        return self.encode(self.render_chat(messages, tools, options), options.add_special_tokens, most)

    def render_chat(self, messages: Dicts, tools: Dicts | None = None, options: ChatOptions = CHAT_DEFAULTS) -> str:
        """The conversation as the model's prompt. Raises ChatTemplateError."""
        template = self._template if tools is None else self._tool_template
        if template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions")
        values = {**self._template_tokens, **options.values(), "messages": messages, "tools": tools}
        rendered = template.render(values)
        if not options.continue_final_message:
            return rendered
        last: Mapping[str, Any] = messages[-1] if messages else {}
        content = last.get("content") or ""
        marked = [*messages[:-1], {**last, "content": content + END_MARK}]
        return up_to_final_message(rendered, template.render({**values, "messages": marked}), content)

    def template_reads(self, name: str) -> bool:
        """Whether the chat template has anything of this name in it."""
        return name in self._template_source

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_of(self, token_id: int) -> str:
        """As the vocabulary has it; empty for an id outside of it."""
        token: str | None = self._backend.id_to_token(token_id)
        return token or ""

    def special_id(self, name: str) -> int | None:
        """Of the special token that is written so; None where there is none."""
        return self._special.get(name)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token alone stands for, special ones by their name."""
        return self._bytes.of(token_id)

    def first_bytes(self, token_id: int) -> bytes:
        """As ``token_bytes``, of a text's first token: without the blank that SentencePiece puts before every text."""
        whole = self.token_bytes(token_id)
        shown = self.decode([token_id], skip_special_tokens=False)
        return whole[1:] if f" {shown}".encode() == whole else whole

    @property
    def for_grammars(self) -> LLTokenizer:
        """The same vocabulary as grammars are matched with. Raises ModelError."""
        made = self._for_grammars
        if isinstance(made, str):
            raise ModelError(f"this model's tokenizer cannot be matched with a grammar: {made}")
        return made

    def prepare_for_grammars(self) -> None:
        """Before anybody waits for this process: it stops all threads for a moment, which is else the first grammar's
        to do."""
        _ = self._for_grammars

    @cached_property
    def _for_grammars(self) -> LLTokenizer | str:
        """Or why there is none."""
        from llguidance import LLTokenizer  # late: most processes never need it

        try:
            return LLTokenizer(self._backend.to_str())
        except ValueError as error:
            return str(error)

    def detokenizer(
        self,
        stop: Sequence[str] = (),
        shows_calls: bool = False,
        shows_special: bool = False,
        min_tokens: int = 0,
        includes_stop: bool = False,
        follows: Sequence[int] = (),
    ) -> IncrementalDetokenizer:
        """For one stream of tokens, ended by the first ``stop`` string. ``shows_calls``: with the marks of calls;
        ``shows_special``: with the names of all special tokens; ``follows``: the last tokens of a text that this one
        goes on with, behind which a blank at its beginning is not dropped."""
        hidden_ids = self._special_ids - self._call_ids if shows_calls else self._special_ids
        shown = frozenset[int]() if shows_special else hidden_ids
        stream = TokenStream(self._backend, shown, self._bytes.single_bytes, follows)
        return IncrementalDetokenizer(stream, stop, min_tokens, includes_stop)


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """The library's own tokenizer, as the folder's tokenizer.json has it. Raises ModelError."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(f"{folder} is not a prepared model: it has no {file.name}")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file} cannot be read as a tokenizer: {error}") from error


def _eos_token_ids(folder: Path) -> tuple[int, ...]:
    """None where the folder is of a tokenizer alone. Raises ModelError."""
    return ModelFacts.read(folder).eos_token_ids if (folder / "config.json").exists() else ()


def _find_chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The template of conversations, and the one for those with tools where it is another. Files stand in place of all
    that the config has, as in transformers. Raises ModelError."""
    default, tool_use = (_read_if_there(folder / each) for each in TEMPLATE_FILES)
    return find_templates(config) if default is None and tool_use is None else (default, tool_use)


def _read_if_there(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, which templates write out."""
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
