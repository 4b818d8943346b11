"""vLLM's fields of how a prompt is made: what a chat's template is given, and where a prompt is cut."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from shared.errors import ChatTemplateError
from shared.openai.errors import RequestError
from shared.openai.fields import check_depth, check_field
from shared.text.chat_options import OWN_NAMES, ChatOptions
from shared.text.tokenizer import Tokenizer

MAX_TEMPLATE_VALUES = 64
THINKING_NAMES = ("reasoning_effort", "enable_thinking")  # of what templates that know of reasoning read
NO_EFFORT = "none"

TemplateValues = Annotated[dict[str, Any], Meta(max_length=MAX_TEMPLATE_VALUES)]
Documents = list[dict[str, str]]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Truncation = Annotated[int, Meta(ge=-1)]
Side = Literal["left", "right"]


def chat_options(fields: Any, tokenizer: Tokenizer) -> ChatOptions:
    """Of the body of a chat, or of a conversation to tokenize. Raises RequestError."""
    continues = fields.continue_final_message is True
    if continues and fields.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: set one of them"
        raise RequestError(message, "continue_final_message")
    values = fields.chat_template_kwargs or {}
    for name in OWN_NAMES:
        if name in values:
            message = f"chat_template_kwargs: {name!r} is not for clients to set there"
            raise RequestError(message, f"chat_template_kwargs.{name}")
    check_depth("chat_template_kwargs", values)
    return ChatOptions(
        add_generation_prompt=not continues and fields.add_generation_prompt is not False,
        continue_final_message=continues,
        add_special_tokens=bool(fields.add_special_tokens),
        documents=getattr(fields, "documents", None),
        template_values=_effort(getattr(fields, "reasoning_effort", None), tokenizer) | values,
    )


def _effort(effort: Effort | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """As vLLM has templates know of it. Raises RequestError where this model's knows nothing of reasoning."""
    if effort is None:
        return {}
    if not any(tokenizer.template_reads(name) for name in THINKING_NAMES):
        check_field("reasoning_effort", effort, (NO_EFFORT,))
    return {"reasoning_effort": effort, "enable_thinking": effort != NO_EFFORT}


def refused_by_template(error: ChatTemplateError, fields: Any) -> RequestError:
    """For the client, with the field at fault."""
    param = "continue_final_message" if fields.continue_final_message else "messages"
    return RequestError(str(error), param)


def truncated(token_ids: list[int], fields: Any, max_prompt_tokens: int) -> list[int]:
    """The end of a prompt, or its beginning, as many tokens as were asked for; ``max_prompt_tokens``: those that leave
    room for the output, as many as -1 asks for. Raises RequestError."""
    asked: int | None = fields.truncate_prompt_tokens
    if asked is None or max_prompt_tokens < 1:  # what is wrong then is said of the output
        return token_ids
    if asked == 0 or asked > max_prompt_tokens:
        most = f"a prompt may have 1 to {max_prompt_tokens} tokens beside the output that is asked for"
        raise RequestError(f"truncate_prompt_tokens is {asked}; {most}", "truncate_prompt_tokens")
    length = max_prompt_tokens if asked < 0 else asked
    return token_ids[:length] if fields.truncation_side == "right" else token_ids[-length:]
