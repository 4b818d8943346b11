"""Token ids for the texts of a backlog."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import load_tokenizer

CHARACTERS_PER_TOKEN = 4  # of English text, where no tokenizer is at hand


class PromptEncoder:
    """With a model folder its tokenizer's ids, as they are before a chat template. Without, a token for every four
    characters, equal ones having equal ids, so that equal beginnings are still shared."""

    def __init__(self, model_path: Path | None) -> None:
        """Raises WorkloadError where the folder has no tokenizer."""
        self._tokenizer = None if model_path is None else load_tokenizer(model_path)
        self._pieces: dict[str, int] = {}

    @property
    def is_exact(self) -> bool:
        return self._tokenizer is not None

    def token_ids(self, prompt: OfflinePrompt) -> list[int] | None:
        """None for a prompt that is a length only."""
        if prompt.num_prompt_tokens is not None:
            return None
        content = prompt.text if prompt.body is None else prompt.body.get("prompt")
        if isinstance(content, list):
            return content
        messages = prompt.messages if prompt.body is None else prompt.body.get("messages")
        return self._encode(content if isinstance(content, str) else _joined(messages or ()))

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is not None:
            ids: list[int] = self._tokenizer.encode(text).ids
            return ids or [0]
        starts = range(0, max(1, len(text)), CHARACTERS_PER_TOKEN)
        pieces = (text[start : start + CHARACTERS_PER_TOKEN] for start in starts)
        return [self._pieces.setdefault(piece, len(self._pieces)) for piece in pieces]


def _joined(messages: Sequence[dict[str, Any]]) -> str:
    """Roles and contents, as templates put them one after another."""
    return "\n".join(f"{message.get('role', '')}\n{message.get('content', '')}" for message in messages)
