"""A model folder whose chat template knows of reasoning, as Qwen's do: the default model's tokenizer under it."""

import shutil
from pathlib import Path

FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor -%}
{%- if documents %}<|im_start|>documents
{% for document in documents %}{{ document.title }}: {{ document.text }}
{% endfor %}<|im_end|>
{% endif -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif always_thinks %}<think>
{% endif %}
{%- endif -%}
"""


def make_thinking_model(model_folder: Path, folder: Path) -> Path:
    """Without weights."""
    for name in FILES:
        shutil.copy(model_folder / name, folder / name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
