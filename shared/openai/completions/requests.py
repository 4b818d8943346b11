"""Read the body of a completion request into what an executor needs, or say which field is wrong and why."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.errors import ChatTemplateError, TextTooLongError
from shared.openai.completions.bodies import ChatCompletionBody, StreamOptions, TextCompletionBody
from shared.openai.completions.prompt_fields import chat_options, refused_by_template, truncated
from shared.openai.completions.prompts import chat_prompt, content_text, text_prompts
from shared.openai.completions.sampling import sampling_of
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import CHAT_FIELDS, DEFAULT, FLEX, TEXT_FIELDS, OtherFields, read_fields
from shared.openai.grammars import schema_of
from shared.openai.reasoning import Reasoning
from shared.openai.served_model import ServedModel
from shared.openai.shown_prompt import check_scores
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FREE, tool_use
from shared.protocol.sampling import SamplingParams
from shared.text.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDPOINTS = (CHAT, TEXT)


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
    reasoning: Reasoning | None = None  # to be parted from the content
    other_prompts: list[list[int]] = []  # of a text completion with several; each has its own choices
    is_seed_drawn: bool = False  # since the client gave none
    tells_usage_so_far: bool = False  # with each chunk of a stream that tells its usage

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of each."""
        return [self.prompt_token_ids, *self.other_prompts]

    @property
    def num_choices(self) -> int:
        """Of all prompts."""
        return len(self.prompts) * self.sampling.n

    def choices(self) -> list[CompletionRequest]:
        """A request of its own for each, prompt by prompt; those of one prompt have seeds of their own. Prompts have
        the same seeds where the client gave one, which says what comes, and else different ones: a prompt that is there
        twice is to have two answers."""
        replace = msgspec.structs.replace
        return [
            replace(self, prompt_token_ids=prompt, sampling=each, other_prompts=[])
            for place, prompt in enumerate(self.prompts)
            for each in self._samplings(prompt, place * self.sampling.n if self.is_seed_drawn else 0)
        ]

    def _samplings(self, prompt: list[int], first: int) -> list[SamplingParams]:
        """``first``: the place of its first choice among those with seeds of their own."""
        sampling = self.sampling.after(prompt) if self.sampling.follows else self.sampling
        seeds = map(sampling.seed_of_choice, range(first, first + sampling.n))
        return [msgspec.structs.replace(sampling, n=1, seed=seed) for seed in seeds]


_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    CHAT: msgspec.json.Decoder(ChatCompletionBody),
    TEXT: msgspec.json.Decoder(TextCompletionBody),
}
_other_fields: dict[str, OtherFields] = {CHAT: CHAT_FIELDS, TEXT: TEXT_FIELDS}


def parse_completion(endpoint: str, body: bytes, tokenizer: Tokenizer, model: ServedModel) -> CompletionRequest:
    """Of one of ENDPOINTS. Raises RequestError."""
    fields = decode_body(body, _decoders[endpoint])
    model = model.asked_as(fields.model)
    read_fields(body, fields.__struct_fields__, _other_fields[endpoint])
    stream, options = fields.stream or False, fields.stream_options or StreamOptions()
    if fields.stream_options is not None and not stream:
        raise RequestError("stream_options is only allowed when stream is true", "stream_options")
    tools = None
    if endpoint == CHAT:
        is_parallel = fields.parallel_tool_calls is not False
        tools = tool_use(fields.tools, fields.tool_choice, is_parallel, tokenizer.tool_format)
    most = model.longest_prompt if fields.truncate_prompt_tokens is None else model.longest_text
    try:
        prompts = _prompts(endpoint, fields, tokenizer, most, tools)
    except TextTooLongError as error:
        raise model.too_long("messages" if endpoint == CHAT else "prompt", most) from error
    prompt_token_ids, *other_prompts = [truncated(each, fields, _room(fields, model)) for each in prompts]
    longest = max(map(len, [prompt_token_ids, *other_prompts]))
    check_scores(fields.prompt_logprobs, stream)
    sampling = sampling_of(fields, tools, longest, tokenizer, model)
    if endpoint == TEXT or fields.continue_final_message:
        sampling = sampling.after(prompt_token_ids)
    return CompletionRequest(
        endpoint=endpoint,
        model=model.name,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
        stream=stream,
        include_usage=bool(options.include_usage),
        user=fields.user,
        metadata=fields.metadata,
        service_tier=FLEX if fields.service_tier == FLEX else DEFAULT,  # online requests have one tier
        tools=tools,
        reasoning=_reasoning(fields, prompt_token_ids, sampling, tools, tokenizer) if endpoint == CHAT else None,
        other_prompts=other_prompts,
        is_seed_drawn=fields.seed is None,
        tells_usage_so_far=bool(options.include_usage and options.continuous_usage_stats),
    )


def _prompts(endpoint: str, fields: Any, tokenizer: Tokenizer, most: int, tools: ToolUse | None) -> list[list[int]]:
    if endpoint == TEXT:
        return text_prompts(fields.prompt, tokenizer, most, fields.add_special_tokens is not False)
    options = chat_options(fields, tokenizer)
    try:
        return [chat_prompt(fields.messages, tokenizer, most, fields.tools if tools is not None else None, options)]
    except ChatTemplateError as error:
        raise refused_by_template(error, fields) from error


def _reasoning(
    fields: Any, prompt: list[int], sampling: SamplingParams, tools: ToolUse | None, tokenizer: Tokenizer
) -> Reasoning | None:
    """None also where the answer keeps to a grammar from its first token on; that of strict tools has any text before
    their calls."""
    begins_free = tools is not None and fields.tool_choice in FREE and schema_of(fields.response_format) is None
    if sampling.grammar and not begins_free:
        return None
    continued = content_text("messages", fields.messages[-1].content) if fields.continue_final_message else ""
    return Reasoning.of(prompt, continued, fields.include_reasoning is not False, tokenizer)


def _room(fields: Any, model: ServedModel) -> int:
    """Tokens that a prompt may have beside the output that is asked for, or one token where that is not said."""
    asked = getattr(fields, "max_completion_tokens", None) or fields.max_tokens or 1
    room = model.max_model_len - asked
    return room if model.max_prompt_tokens is None else min(room, model.max_prompt_tokens)
