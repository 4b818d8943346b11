"""Responses as the bus keeps them, for those that go on from them."""

from typing import Any

import msgspec


class StoredResponse(msgspec.Struct, frozen=True):
    """``owner``: the name of the key that it was made with; empty where keys are off. ``input``: the messages of its
    own request; ``before``: those of the responses that it goes on from. Messages are those of a chat completion, and
    none is of ``instructions``."""

    id: str
    owner: str
    response: msgspec.Raw
    before: list[dict[str, Any]]
    input: list[dict[str, Any]]
    output: str

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """What a response that goes on from it has before its own input."""
        return [*self.before, *self.input, {"role": "assistant", "content": self.output}]
