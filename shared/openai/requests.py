"""Read the body of a completion request into what an executor needs, or say which field is wrong and why."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.errors import ChatTemplateError
from shared.openai.errors import RequestError as RequestError
from shared.openai.fields import reject_unsupported
from shared.openai.json_body import decode_body
from shared.openai.prompts import Message, chat_prompt, text_prompt
from shared.protocol.messages import SamplingParams
from shared.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDPOINTS = (CHAT, TEXT)

DEFAULT_TEXT_MAX_TOKENS = 16  # what OpenAI generates on /v1/completions when the request does not say
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_LENGTH = 512  # characters; streams hold back as many
SEED_BITS = 63

Count = Annotated[int, Meta(ge=1)]


class ServedModel(msgspec.Struct, frozen=True):
    """The model behind the endpoints."""

    name: str
    max_model_len: int  # tokens, prompt and output together


class CompletionRequest(msgspec.Struct, frozen=True):
    """A valid request. ``sampling.seed`` is always set."""

    endpoint: str
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    user: str | None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None


class _ChatBody(_Body):
    messages: list[Message] | None = None
    max_completion_tokens: Count | None = None


class _TextBody(_Body):
    prompt: Any = None


_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    CHAT: msgspec.json.Decoder(_ChatBody),
    TEXT: msgspec.json.Decoder(_TextBody),
}
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_completion(endpoint: str, body: bytes, tokenizer: Tokenizer, model: ServedModel) -> CompletionRequest:
    """``endpoint`` is one of ENDPOINTS. Unknown fields are ignored, known but unsupported ones refused.
    Raises RequestError."""
    fields = decode_body(body, _decoders[endpoint])
    _check_model(fields.model, model)
    reject_unsupported(_fields_decoder.decode(body), chat=endpoint == CHAT)
    stream = fields.stream or False
    if fields.stream_options is not None and not stream:
        raise RequestError("stream_options is only allowed when stream is true", "stream_options")
    prompt_token_ids = _prompt(endpoint, fields, tokenizer)
    return CompletionRequest(
        endpoint=endpoint,
        model=model.name,
        prompt_token_ids=prompt_token_ids,
        sampling=_sampling(endpoint, fields, len(prompt_token_ids), tokenizer, model),
        stream=stream,
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        user=fields.user,
    )


def _check_model(name: str | None, model: ServedModel) -> None:
    if name is None:
        raise RequestError("model is missing", "model")
    if name != model.name:
        raise RequestError(
            f"the model {name!r} does not exist; this server has {model.name!r}", "model", "model_not_found", 404
        )


def _prompt(endpoint: str, fields: Any, tokenizer: Tokenizer) -> list[int]:
    if endpoint == TEXT:
        return text_prompt(fields.prompt, tokenizer)
    try:
        return chat_prompt(fields.messages, tokenizer)
    except ChatTemplateError as error:
        raise RequestError(str(error), "messages") from error


def _sampling(
    endpoint: str, fields: Any, prompt_tokens: int, tokenizer: Tokenizer, model: ServedModel
) -> SamplingParams:
    return SamplingParams(
        max_tokens=_max_tokens(endpoint, fields, prompt_tokens, model),
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(0, fields.top_k or 0),
        seed=secrets.randbits(SEED_BITS) if fields.seed is None else fields.seed % (1 << SEED_BITS),
        stop=_stop_strings(fields.stop),
        stop_token_ids=_stop_token_ids(fields.stop_token_ids, tokenizer),
        ignore_eos=fields.ignore_eos or False,
    )


def _max_tokens(endpoint: str, fields: Any, prompt_tokens: int, model: ServedModel) -> int:
    """What was asked for, or the default; prompt and output together fit the context."""
    prompt_param = "messages" if endpoint == CHAT else "prompt"
    room = model.max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(
            f"this model's maximum context length is {model.max_model_len} tokens, and {prompt_param} has "
            f"{prompt_tokens}; at least one must be left for the output",
            prompt_param,
            "context_length_exceeded",
        )
    param = "max_tokens"
    if endpoint == CHAT and fields.max_completion_tokens is not None:
        param = "max_completion_tokens"
    asked: int | None = getattr(fields, param)
    if asked is None:
        return room if endpoint == CHAT else min(room, DEFAULT_TEXT_MAX_TOKENS)
    if asked > room:
        raise RequestError(
            f"this model's maximum context length is {model.max_model_len} tokens; the request asks for "
            f"{prompt_tokens + asked} ({prompt_tokens} in {prompt_param}, {asked} in {param})",
            param,
            "context_length_exceeded",
        )
    return asked


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed", "stop")
    if not all(strings):
        raise RequestError("stop holds an empty string", "stop")
    if any(len(string) > MAX_STOP_STRING_LENGTH for string in strings):
        raise RequestError(f"a stop string is longer than {MAX_STOP_STRING_LENGTH} characters", "stop")
    return strings


def _stop_token_ids(token_ids: list[int] | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    for token_id in token_ids or ():
        if token_id >= tokenizer.vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {tokenizer.vocab_size}", "stop_token_ids"
            )
    return tuple(token_ids or ())
