"""Read the body of a completion request into what an executor needs, or say which field is wrong and why."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from shared.errors import ChatTemplateError
from shared.openai.completions.bodies import ChatCompletionBody, TextCompletionBody
from shared.openai.completions.prompts import chat_prompt, text_prompts
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import CHAT_FIELDS, DEFAULT, FLEX, TEXT_FIELDS, OtherFields, read_fields
from shared.openai.grammars import calls_grammar, grammar_of
from shared.openai.shown_prompt import asked_of_prompt, check_scores
from shared.openai.shown_text import asked_of_chat
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FREE, tool_use
from shared.protocol.sampling import SEED_BITS, SamplingParams
from shared.text.embedding_sizes import EmbeddingSizes
from shared.text.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDPOINTS = (CHAT, TEXT)

# Of the sampling, what goes on as it is asked for.
PLAIN_PARAMS = (
    *("temperature", "top_p", "min_p", "n", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
DEFAULT_TEXT_MAX_TOKENS = 16  # what OpenAI generates on /v1/completions when the request does not say


class ServedModel(msgspec.Struct, frozen=True):
    """The model behind the endpoints."""

    name: str
    max_model_len: int  # tokens, prompt and output together
    max_prompt_tokens: int | None = None  # None: as the context allows
    permitted: list[str] | None = None  # names that whoever asks may ask for; None: any
    embedding_sizes: EmbeddingSizes = EmbeddingSizes()

    def permits(self, name: str) -> bool:
        """Whether who asks may ask for it, whatever it is."""
        return self.permitted is None or name in self.permitted

    def check(self, name: str) -> None:
        """Raises RequestError (404) for the name of another one, or one that is not permitted."""
        if not self.permits(name):
            message = f"the model {name!r} does not exist or you do not have access to it"
            raise RequestError(message, "model", "model_not_found", 404)
        if name != self.name:
            message = f"the model {name!r} does not exist; this server has {self.name!r}"
            raise RequestError(message, "model", "model_not_found", 404)


class CompletionRequest(msgspec.Struct, frozen=True):
    """A valid request. ``sampling.seed`` is always set."""

    endpoint: str
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    user: str | None
    metadata: dict[str, str] | None = None
    service_tier: str = DEFAULT
    tools: ToolUse | None = None  # whose calls are to be found in the output
    other_prompts: list[list[int]] = []  # of a text completion with several; each has its own choices

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of each."""
        return [self.prompt_token_ids, *self.other_prompts]

    @property
    def num_choices(self) -> int:
        """Of all prompts."""
        return len(self.prompts) * self.sampling.n

    def choices(self) -> list[CompletionRequest]:
        """A request of its own for each, prompt by prompt; those of one prompt have seeds of their own."""
        sampling, replace = self.sampling, msgspec.structs.replace
        samplings = [replace(sampling, n=1, seed=sampling.seed_of_choice(index)) for index in range(sampling.n)]
        pairs = [(prompt, each) for prompt in self.prompts for each in samplings]
        return [replace(self, prompt_token_ids=prompt, sampling=each, other_prompts=[]) for prompt, each in pairs]


_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    CHAT: msgspec.json.Decoder(ChatCompletionBody),
    TEXT: msgspec.json.Decoder(TextCompletionBody),
}
_other_fields: dict[str, OtherFields] = {CHAT: CHAT_FIELDS, TEXT: TEXT_FIELDS}


def parse_completion(endpoint: str, body: bytes, tokenizer: Tokenizer, model: ServedModel) -> CompletionRequest:
    """Of one of ENDPOINTS. Raises RequestError."""
    fields = decode_body(body, _decoders[endpoint])
    model.check(fields.model)
    read_fields(body, fields.__struct_fields__, _other_fields[endpoint])
    stream = fields.stream or False
    if fields.stream_options is not None and not stream:
        raise RequestError("stream_options is only allowed when stream is true", "stream_options")
    tools = None
    if endpoint == CHAT:
        is_parallel = fields.parallel_tool_calls is not False
        tools = tool_use(fields.tools, fields.tool_choice, is_parallel, tokenizer.tool_format)
    prompt_token_ids, *other_prompts = _prompts(endpoint, fields, tokenizer, tools)
    longest = max(map(len, [prompt_token_ids, *other_prompts]))
    check_scores(fields.prompt_logprobs, stream)
    return CompletionRequest(
        endpoint=endpoint,
        model=model.name,
        prompt_token_ids=prompt_token_ids,
        sampling=_sampling(endpoint, fields, tools, longest, tokenizer, model),
        stream=stream,
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        user=fields.user,
        metadata=fields.metadata,
        service_tier=FLEX if fields.service_tier == FLEX else DEFAULT,  # online requests have one tier
        tools=tools,
        other_prompts=other_prompts,
    )


def _prompts(endpoint: str, fields: Any, tokenizer: Tokenizer, tools: ToolUse | None) -> list[list[int]]:
    if endpoint == TEXT:
        return text_prompts(fields.prompt, tokenizer)
    try:
        return [chat_prompt(fields.messages, tokenizer, fields.tools if tools is not None else None)]
    except ChatTemplateError as error:
        raise RequestError(str(error), "messages") from error


def _grammar(fields: Any, tools: ToolUse | None, tokenizer: Tokenizer) -> str:
    """That the output keeps to; empty for any text."""
    grammar = grammar_of(fields.response_format, tokenizer)
    if grammar and tools is not None:
        message = "response_format leaves no room for calls of tools; leave one out, or set tool_choice to none"
        raise RequestError(message, "response_format")
    if tools is not None:
        grammar = calls_grammar(fields.tools, tools, fields.tool_choice not in FREE, tokenizer)
    if grammar and fields.ignore_eos:
        raise RequestError(
            "ignore_eos does not go with response_format, strict tools or a tool_choice that demands a call: these say "
            "where an answer ends",
            "ignore_eos",
        )
    return grammar


def _sampling(
    endpoint: str, fields: Any, tools: ToolUse | None, prompt_tokens: int, tokenizer: Tokenizer, model: ServedModel
) -> SamplingParams:
    if endpoint == TEXT and fields.best_of not in (None, fields.n or 1):
        raise RequestError("best_of is only supported where it is n: every choice is shown", "best_of")
    for name in ("stop_token_ids", "logit_bias"):
        for token_id in getattr(fields, name) or ():
            if token_id >= tokenizer.vocab_size:
                message = f"{name}: token id {token_id} is outside the vocabulary of {tokenizer.vocab_size}"
                raise RequestError(message, name)
    echo = endpoint == TEXT and bool(fields.echo)
    prompt_logprobs = asked_of_prompt(fields.prompt_logprobs, fields.logprobs if echo else None, prompt_tokens)
    return SamplingParams(
        max_tokens=_max_tokens(endpoint, fields, prompt_tokens, model),
        top_k=min(max(0, fields.top_k or 0), tokenizer.vocab_size),
        seed=secrets.randbits(SEED_BITS) if fields.seed is None else fields.seed % (1 << SEED_BITS),
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        logit_bias=tuple(sorted((fields.logit_bias or {}).items())),
        grammar=_grammar(fields, tools, tokenizer),
        logprobs=asked_of_chat(fields.logprobs, fields.top_logprobs) if endpoint == CHAT else fields.logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
        lists_prompt=fields.prompt_logprobs is not None,
        **{name: value for name in PLAIN_PARAMS if (value := getattr(fields, name)) is not None},
    )


def _max_tokens(endpoint: str, fields: Any, prompt_tokens: int, model: ServedModel) -> int:
    """What was asked for, or the default; prompt and output together fit the context."""
    prompt_param = "messages" if endpoint == CHAT else "prompt"
    most, length = model.max_prompt_tokens, f"this model's maximum context length is {model.max_model_len} tokens"
    if most is not None and prompt_tokens > most:
        raise _too_long(f"{prompt_param} has {prompt_tokens} tokens; this server takes at most {most}", prompt_param)
    room = model.max_model_len - prompt_tokens
    if room < 1:
        left = "at least one must be left for the output"
        raise _too_long(f"{length}, and {prompt_param} has {prompt_tokens}; {left}", prompt_param)
    has_newer_name = endpoint == CHAT and fields.max_completion_tokens is not None
    param = "max_completion_tokens" if has_newer_name else "max_tokens"
    asked: int | None = getattr(fields, param)
    if asked == 0 and not (endpoint == TEXT and fields.echo) and fields.prompt_logprobs is None:
        message = "max_tokens is 0, and nothing of the prompt is asked for; ask for 1 or more, for echo, or for "
        raise RequestError(message + "prompt_logprobs", "max_tokens")
    if asked is None:
        return room if endpoint == CHAT else min(room, DEFAULT_TEXT_MAX_TOKENS)
    if asked > room:
        parts = f"{prompt_tokens} in {prompt_param}, {asked} in {param}"
        raise _too_long(f"{length}; the request asks for {prompt_tokens + asked} ({parts})", param)
    return asked


def _too_long(message: str, param: str) -> RequestError:
    return RequestError(message, param, "context_length_exceeded")
