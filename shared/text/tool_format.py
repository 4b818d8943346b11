"""How a model writes calls of tools: known by what its chat template shows it."""

import enum

OWN_ARGUMENTS = ("<function=", "<arg_key>", "[ARGS]")  # of formats whose arguments are not one JSON object


class ToolFormat(enum.StrEnum):
    """The families of templates that are understood."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as often as needed; Qwen too
    LLAMA = "llama"  # the whole message is {"name": ..., "parameters": {...}}; Llama 3.1 and later
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]


BEGINS = {ToolFormat.HERMES: "<tool_call>", ToolFormat.LLAMA: "<|python_tag|>", ToolFormat.MISTRAL: "[TOOL_CALLS]"}
ARGUMENTS = {ToolFormat.HERMES: "arguments", ToolFormat.LLAMA: "parameters", ToolFormat.MISTRAL: "arguments"}
HERMES_END = "</tool_call>"
LLAMA_HINT = '"parameters": dictionary of argument name'  # what its templates tell the model


def tool_format_of(chat_template: str) -> ToolFormat | None:
    """None where the template takes no tools, or has calls written in a format that is not understood."""
    if "tools" not in chat_template or any(mark in chat_template for mark in OWN_ARGUMENTS):
        return None
    if BEGINS[ToolFormat.MISTRAL] in chat_template:
        return ToolFormat.MISTRAL
    if BEGINS[ToolFormat.HERMES] in chat_template:
        return ToolFormat.HERMES
    return ToolFormat.LLAMA if LLAMA_HINT in chat_template else None
