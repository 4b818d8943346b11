"""Model folders whose chat templates take tools: the default model's tokenizer under templates of three families."""

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers

from shared.text.tool_format import BEGINS, ToolFormat

TEMPLATES = Path(__file__).parent / "tool_templates"
FILES = ("config.json", "generation_config.json", "tokenizer_config.json")

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
USER: dict[str, Any] = {"role": "user", "content": "What is the weather in Paris?"}

CALLS = {  # what the models write for one call of get_weather, and one of get_time
    ToolFormat.HERMES: (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
    ),
    ToolFormat.LLAMA: (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "get_time", "parameters": {}}',
    ),
    ToolFormat.MISTRAL: (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]',
    ),
}


def make_model(model_folder: Path, format: ToolFormat, folder: Path) -> Path:
    """A folder like a prepared model's, without weights. The mark that begins Mistral's calls is a special token."""
    for name in FILES:
        shutil.copy(model_folder / name, folder / name)
    tokenizer = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    if format is ToolFormat.MISTRAL:
        tokenizer.add_special_tokens([BEGINS[format]])
        config = json.loads((folder / "config.json").read_text())
        config["vocab_size"] = tokenizer.get_vocab_size()
        (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copy(TEMPLATES / f"{format.value}.jinja", folder / "chat_template.jinja")
    return folder
