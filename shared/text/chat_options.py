"""How a conversation becomes a prompt, beyond its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.errors import ChatTemplateError

OWN_NAMES = (  # what templates are given by those who render them
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    *("chat_template", "tokenize", "range"),
)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """``template_values``: what the template may read, by names that are not OWN_NAMES."""

    add_generation_prompt: bool = True  # the assistant's turn is begun
    continue_final_message: bool = False  # the prompt ends within the last message
    add_special_tokens: bool = False  # beside those that the template writes
    documents: Sequence[Mapping[str, Any]] | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """For the template."""
        documents = {} if self.documents is None else {"documents": self.documents}
        return {**self.template_values, **documents, "add_generation_prompt": self.add_generation_prompt}


def up_to_final_message(rendered: str, content: str) -> str:
    """The prompt without what the template writes behind the last message, of this content. Raises
    ChatTemplateError where the template does not show it as it is."""
    bare = content.strip()
    at = rendered.rfind(bare) if bare else -1
    if at < 0:
        raise ChatTemplateError("the last message cannot be continued: it is empty, or the template changes it")
    end, blanks = at + len(bare), content[len(content.rstrip()) :]
    return rendered[: end + len(blanks)] if rendered.startswith(blanks, end) else rendered[:end]
