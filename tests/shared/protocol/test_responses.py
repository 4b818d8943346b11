"""Responses as they are kept."""

from typing import Any

import msgspec
import pytest

from shared.protocol.access.owners import owner_of
from shared.protocol.responses import StoredResponse


@pytest.mark.parametrize(("key_name", "organization"), [("alice", ""), ("alice", "lab"), ("", "")])
def test_a_response_is_of_who_made_it_and_goes_on_from_what_was_said(key_name: str, organization: str) -> None:
    before, asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], {"role": "user"}
    stored = StoredResponse("resp_1", key_name, msgspec.Raw(b"{}"), before, [asked], "c", organization)
    assert stored.owner == owner_of(key_name, organization)
    said: dict[str, Any] = {"role": "assistant", "content": "c"}
    assert stored.conversation == [*before, asked, said]
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    called = msgspec.structs.replace(stored, calls=calls, reasoning="d")
    assert called.conversation == [*before, asked, said | {"tool_calls": calls, "reasoning": "d"}]
