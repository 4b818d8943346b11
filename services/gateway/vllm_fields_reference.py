"""The table of vLLM's request fields in docs/guides/from_vllm.md: ``python -m services.gateway.vllm_fields_reference``
prints it."""

from collections.abc import Iterator

import msgspec

from shared.openai.completions.bodies import ChatCompletionBody, CompletionBody, TextCompletionBody
from shared.openai.fields import CHAT_FIELDS, TEXT_FIELDS, OtherFields

BEGIN, END = "<!-- request fields -->", "<!-- /request fields -->"
SERVED, IGNORED, REFUSED, UNKNOWN = "served", "accepted without effect", "refused", ""

# Of vLLM 0.32, in its order: those that both endpoints have, those of chats, those of texts.
BOTH = (
    *("model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty"),
    *("response_format", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "user"),
    *("use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking", "length_penalty", "stop_token_ids"),
    *("include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side", "prompt_logprobs"),
    *("logprob_token_ids", "allowed_token_ids", "bad_words", "echo", "add_special_tokens", "structured_outputs"),
    *("priority", "request_id", "session_id", "return_tokens_as_token_ids", "return_token_ids"),
    *("routed_experts_prompt_start", "return_token_offsets", "mm_payload", "return_mm_kwargs", "cache_salt"),
    *("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "repetition_detection", "thinking_token_budget"),
    "stream_interval",
)
CHAT_ONLY = (
    *("messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort"),
    *("include_reasoning", "parallel_tool_calls", "add_generation_prompt", "continue_final_message", "documents"),
    *("chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "return_prompt_text"),
)
TEXT_ONLY = ("prompt", "suffix", "prompt_embeds")
OLDER = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
OLDER_REFUSED = ("guided_whitespace_pattern",)  # vLLM ignores all of these by now

NOTES = {
    "model": "required",
    "logit_bias": "up to 1024 tokens, -100 to 100",
    "logprobs": "of a text up to 5",
    "n": "up to 8",
    "temperature": "up to 2",
    "response_format": "without `structural_tag`",
    "stop": "up to 16 strings",
    "prompt_logprobs": "up to 20, without -1",
    "top_logprobs": "up to 20, without -1",
    "structured_outputs": "without `structural_tag`, `whitespace_pattern`, `disable_additional_properties`",
    "reasoning_effort": "but for `none` where the template reads it",
    "allowed_token_ids": "up to 8192",
    "chat_template": "the model's own; render the prompt yourself for `/v1/completions`",
    "priority": "online and offline requests are two kinds",
    "echo": "of a text",
    "cache_salt": "`prefix_sharing` of `[gateway]` keeps owners apart",
    "tools": "where the template's format is known",
}

_BODIES: dict[str, tuple[type[CompletionBody], OtherFields]] = {
    "chat": (ChatCompletionBody, CHAT_FIELDS),
    "text": (TextCompletionBody, TEXT_FIELDS),
}


def fields_of(kind: str) -> tuple[str, ...]:
    """vLLM's, of ``chat`` or ``text``."""
    return (*BOTH, *(CHAT_ONLY if kind == "chat" else TEXT_ONLY))


def status_of(kind: str, name: str) -> str:
    """What becomes of a field of vLLM's, of ``chat`` or ``text``; UNKNOWN where vLLM's endpoint has none of this
    name."""
    if name not in (*fields_of(kind), *OLDER, *OLDER_REFUSED):
        return UNKNOWN
    body, others = _BODIES[kind]
    if name in body.__struct_fields__:
        return SERVED
    if name in others.ignored:
        return IGNORED
    accepted = " or ".join(f"`{msgspec.json.encode(each).decode()}`" for each in others.refused.get(name, ()))
    return f"{REFUSED}, but for {accepted}" if accepted else REFUSED


def vllm_fields_reference() -> Iterator[str]:
    """The table, line by line."""
    yield "| field of vLLM 0.32 | chat | text | |"
    yield "| --- | --- | --- | --- |"
    for name in (*BOTH, *CHAT_ONLY, *TEXT_ONLY, *OLDER, *OLDER_REFUSED):
        yield f"| `{name}` | {status_of('chat', name)} | {status_of('text', name)} | {NOTES.get(name, '')} |"


if __name__ == "__main__":
    print("\n".join(vllm_fields_reference()))
