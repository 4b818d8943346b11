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

END_MARK = "[end-of-the-final-message]"  # no template has it, and no filter of blanks changes it


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


def up_to_final_message(rendered: str, marked: str, content: str) -> str:
    """The prompt without what the template writes behind the last message, of this content. ``marked``: the same with
    END_MARK behind the content, which tells this place from others that read as it does. Raises ChatTemplateError where
    the template does not show the content as it is."""
    before, _, _ = marked.rpartition(END_MARK)
    bare, before = content.strip(), before.replace(END_MARK, "").rstrip()
    if not bare or not before.endswith(bare) or not rendered.startswith(before):
        raise ChatTemplateError("the last message cannot be continued: it is empty, or the template changes it")
    end, blanks = len(before), content[len(content.rstrip()) :]
    return rendered[: end + len(blanks)] if rendered.startswith(blanks, end) else rendered[:end]
