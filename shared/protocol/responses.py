"""Responses as the bus keeps them, for those that go on from them."""

from typing import Any

import msgspec

from shared.protocol.access.owners import owner_of


class StoredResponse(msgspec.Struct, frozen=True):
    """``key_name``, ``organization``: of the key that it was made with; empty without. ``input``: the messages of its
    own request; ``before``: those of the responses that it goes on from. Messages are those of a chat completion, and
    none is of ``instructions``. ``calls`` and ``reasoning``: in its output, as a chat's message has them."""

    id: str
    key_name: str = msgspec.field(name="owner")
    response: msgspec.Raw
    before: list[dict[str, Any]]
    input: list[dict[str, Any]]
    output: str
    organization: str = ""
    calls: list[dict[str, Any]] = []
    reasoning: str = ""

    @property
    def owner(self) -> str:
        return owner_of(self.key_name, self.organization)

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """What a response that goes on from it has before its own input."""
        beside = {"tool_calls": self.calls, "reasoning": self.reasoning}
        said = {"role": "assistant", "content": self.output} | {name: each for name, each in beside.items() if each}
        return [*self.before, *self.input, said]
