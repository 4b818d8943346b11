"""How the tokens of a completion are chosen, by the fields of its body."""

import secrets
from typing import Any

from shared.openai.completions.bad_words import bad_word_tokens
from shared.openai.completions.bodies import ChatCompletionBody, TextCompletionBody
from shared.openai.errors import RequestError
from shared.openai.grammars import calls_grammar, grammar_of, schema_of
from shared.openai.served_model import ServedModel
from shared.openai.shown_prompt import asked_of_prompt
from shared.openai.structured_outputs import constraint_of
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FREE
from shared.protocol.sampling import SEED_BITS, SamplingParams
from shared.text.generation_defaults import GenerationDefaults
from shared.text.tokenizer import Tokenizer

# What goes on as it is asked for.
PLAIN_PARAMS = (
    *("temperature", "top_p", "top_k", "min_p", "n", "ignore_eos", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
DEFAULT_TEXT_MAX_TOKENS = 16  # what OpenAI generates on /v1/completions when the request does not say
TOKEN_ID_FIELDS = ("stop_token_ids", "logit_bias", "allowed_token_ids")

Body = ChatCompletionBody | TextCompletionBody


def sampling_of(
    fields: Body, tools: ToolUse | None, prompt_tokens: int, tokenizer: Tokenizer, model: ServedModel
) -> SamplingParams:
    """``prompt_tokens``: of the longest prompt. Raises RequestError."""
    if isinstance(fields, TextCompletionBody) and fields.best_of not in (None, fields.n or 1):
        raise RequestError("best_of is only supported where it is n: every choice is shown", "best_of")
    _check_token_ids(fields, tokenizer.vocab_size)
    num_logprobs = fields.num_logprobs
    max_tokens = _max_tokens(fields, prompt_tokens, model)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=secrets.randbits(SEED_BITS) if fields.seed is None else fields.seed % (1 << SEED_BITS),
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        logit_bias=tuple(sorted((fields.logit_bias or {}).items())),
        allowed_token_ids=tuple(dict.fromkeys(fields.allowed_token_ids or ())),
        bad_words=bad_word_tokens(fields.bad_words or (), tokenizer),
        includes_stop=bool(fields.include_stop_str_in_output),
        shows_special=fields.skip_special_tokens is False,
        grammar=_grammar(fields, tools, tokenizer),
        logprobs=num_logprobs,
        prompt_logprobs=asked_of_prompt(fields.prompt_logprobs, num_logprobs if fields.echoes else None, prompt_tokens),
        echo=fields.echoes,
        lists_prompt=fields.prompt_logprobs is not None,
        adapter=model.adapter,
        **_plain(fields, max_tokens, tokenizer.vocab_size, model.defaults),
    )


def _plain(fields: Body, max_tokens: int, vocab_size: int, defaults: GenerationDefaults) -> dict[str, Any]:
    """What is given of PLAIN_PARAMS, or is the model's default."""
    asked = {name: getattr(fields, name) for name in PLAIN_PARAMS}
    given = {name: defaults.of(name) if value is None else value for name, value in asked.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if "top_k" in given:
        given["top_k"] = min(max(0, given["top_k"]), vocab_size)
    if given.get("min_tokens", 0) > max_tokens:
        message = f"min_tokens is {fields.min_tokens}, and no more than {max_tokens} tokens may come"
        raise RequestError(message, "min_tokens")
    return given


def _check_token_ids(fields: Body, vocab_size: int) -> None:
    for name in TOKEN_ID_FIELDS:
        for token_id in getattr(fields, name) or ():
            if token_id >= vocab_size:
                raise RequestError(f"{name}: token id {token_id} is outside the vocabulary of {vocab_size}", name)


def _grammar(fields: Body, tools: ToolUse | None, tokenizer: Tokenizer) -> str:
    """That the output keeps to; empty for any text."""
    grammar = grammar_of(fields.response_format, tokenizer)
    if constraint := constraint_of(fields):
        if grammar:
            message = f"{constraint.param} does not go with response_format: an answer keeps to one of them"
            raise RequestError(message, constraint.param)
        grammar, param = constraint.grammar(tokenizer), constraint.param
        if tools is not None:
            message = f"{param} leaves no room for calls of tools; leave one out, or set tool_choice to none"
            raise RequestError(message, param)
    if isinstance(fields, ChatCompletionBody) and tools is not None:
        answer = schema_of(fields.response_format)
        grammar = calls_grammar(fields.tools or [], tools, fields.tool_choice not in FREE, tokenizer, answer)
    if grammar and fields.ignore_eos:
        raise RequestError(
            "ignore_eos does not go with response_format, structured_outputs, strict tools or a tool_choice that "
            "demands a call: these say where an answer ends",
            "ignore_eos",
        )
    return grammar


def _max_tokens(fields: Body, prompt_tokens: int, model: ServedModel) -> int:
    """What was asked for, or the default; prompt and output together fit the context."""
    is_chat = isinstance(fields, ChatCompletionBody)
    prompt_param = "messages" if is_chat else "prompt"
    most, length = model.max_prompt_tokens, model.told_length
    if most is not None and prompt_tokens > most:
        raise _too_long(f"{prompt_param} has {prompt_tokens} tokens; this server takes at most {most}", prompt_param)
    room = model.max_model_len - prompt_tokens
    if room < 1:
        left = "at least one must be left for the output"
        raise _too_long(f"{length}, and {prompt_param} has {prompt_tokens}; {left}", prompt_param)
    param, asked = "max_tokens", fields.max_tokens
    if isinstance(fields, ChatCompletionBody) and fields.max_completion_tokens is not None:
        param, asked = "max_completion_tokens", fields.max_completion_tokens
    if asked == 0 and not fields.echoes and fields.prompt_logprobs is None:
        message = "max_tokens is 0, and nothing of the prompt is asked for; ask for 1 or more, for echo, or for "
        raise RequestError(message + "prompt_logprobs", "max_tokens")
    if asked is None:
        return room if is_chat else min(room, DEFAULT_TEXT_MAX_TOKENS)
    if asked > room:
        parts = f"{prompt_tokens} in {prompt_param}, {asked} in {param}"
        raise _too_long(f"{length}; the request asks for {prompt_tokens + asked} ({parts})", param)
    return asked


def _too_long(message: str, param: str) -> RequestError:
    return RequestError(message, param, "context_length_exceeded")
