"""Texts and conversations as token ids, and back: vLLM's /tokenize and /detokenize."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.errors import ChatTemplateError, TextTooLongError
from shared.openai.completions.prompt_fields import TemplateValues, chat_options, refused_by_template
from shared.openai.completions.prompts import Message, chat_prompt
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import OtherFields, read_fields
from shared.openai.served_model import ServedModel
from shared.openai.tools.definitions import Tool, tool_use
from shared.text.tokenizer import Tokenizer

OTHERS = OtherFields((), {})
TokenId = Annotated[int, Meta(ge=0)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text, or a conversation as a chat completion would make a prompt of it. Null is as absent."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None  # by default a text's, and no conversation's
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    tools: list[Tool] | None = None


class TokenizedText(msgspec.Struct, frozen=True):
    """``count``: of the tokens; ``token_strs``: as the vocabulary has them, where they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Token ids."""

    tokens: list[TokenId]
    model: str | None = None


class DetokenizedText(msgspec.Struct, frozen=True):
    """What they read, special ones by their names."""

    prompt: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)


def tokenized(body: bytes, tokenizer: Tokenizer, model: ServedModel) -> TokenizedText:
    """Raises RequestError."""
    fields = decode_body(body, _tokenize_decoder)
    _check(body, fields, model)
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("give one of prompt and messages", "prompt")
    most = model.longest_text
    try:
        if fields.prompt is not None:
            tokens = tokenizer.encode(fields.prompt, fields.add_special_tokens is not False, most)
        else:
            tokens = _conversation(fields, tokenizer, most)
    except TextTooLongError as error:
        raise model.too_long("messages" if fields.prompt is None else "prompt", most) from error
    strs = [tokenizer.token_of(token_id) for token_id in tokens] if fields.return_token_strs else None
    return TokenizedText(len(tokens), model.max_model_len, tokens, strs)


def detokenized(body: bytes, tokenizer: Tokenizer, model: ServedModel) -> DetokenizedText:
    """Raises RequestError."""
    fields = decode_body(body, _detokenize_decoder)
    _check(body, fields, model)
    if len(fields.tokens) > model.longest_text:  # the library's decode holds up all threads
        raise model.too_long("tokens", model.longest_text)
    for index, token_id in enumerate(fields.tokens):
        if token_id >= tokenizer.vocab_size:
            where, size = f"tokens[{index}]", tokenizer.vocab_size
            raise RequestError(f"token id {token_id} is outside the vocabulary of {size}", where)
    return DetokenizedText(tokenizer.decode(fields.tokens, skip_special_tokens=False))


def _check(body: bytes, fields: Any, model: ServedModel) -> None:
    read_fields(body, fields.__struct_fields__, OTHERS)
    if fields.model is not None:
        model.check(fields.model)


def _conversation(fields: TokenizeBody, tokenizer: Tokenizer, most: int) -> list[int]:
    use = tool_use(fields.tools, None, True, tokenizer.tool_format)
    options = chat_options(fields, tokenizer)
    try:
        return chat_prompt(fields.messages, tokenizer, most, fields.tools if use is not None else None, options)
    except ChatTemplateError as error:
        raise refused_by_template(error, fields) from error
