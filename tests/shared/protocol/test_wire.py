"""Processes of this version and of the one before understand each other, as far as their messages tell."""

from copy import deepcopy

import msgspec
import pytest

from shared.protocol.codec import decode, encode
from tests.shared.protocol.wire import Message, Wire, broken_by

BEFORE = Wire(
    {
        "Beat": Message({"id": "str", "load": "int = 0", "room": "float | none = None"}),
        "Place": Message({"host": "str", "number": "int"}, is_array=True),
        "Params": Message({"top_p": "float = 1.0"}, tag="params", omits_defaults=True),
    },
    {"PING": "slackwater.ping"},
)


def with_fields(name: str, fields: dict[str, str]) -> Wire:
    now = deepcopy(BEFORE)
    now.messages[name] = msgspec.structs.replace(now.messages[name], fields=fields)
    return now


def test_the_version_before_can_be_on_the_same_bus() -> None:
    assert broken_by(Wire.of_the_last_version(), Wire.of_the_code()) == [], (
        "a stack is upgraded one process after another: give what is new a default, let what is old stay"
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Beat", {"load": "int = 0", "id": "str", "room": "float | none = None", "more": "str = ''"}),
        ("Beat", {"id": "str"}),
        ("Beat", {"id": "str", "load": "int = 7", "room": "float | none = None"}),
        ("Place", {"host": "str", "number": "int", "rack": "str = ''"}),
        ("Params", {"top_p": "float = 1.0", "top_k": "int = 0"}),
    ],
)
def test_what_may_change(name: str, fields: dict[str, str]) -> None:
    assert broken_by(BEFORE, with_fields(name, fields)) == []


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("Beat", {"load": "int = 0", "room": "float | none = None"}, "id is gone"),
        ("Beat", BEFORE.messages["Beat"].fields | {"more": "str"}, "more is new and needed"),
        ("Beat", BEFORE.messages["Beat"].fields | {"load": "int"}, "load is needed"),
        ("Beat", BEFORE.messages["Beat"].fields | {"id": "int"}, "id is int, and was str"),
        ("Place", {"number": "int", "host": "str"}, "other places"),
        ("Place", {"host": "str", "rack": "str = ''", "number": "int"}, "other places"),
        ("Params", {"top_p": "float = 0.9"}, "means 0.9 where it is left out, and meant 1.0"),
    ],
)
def test_what_may_not(name: str, fields: dict[str, str], why: str) -> None:
    (found,) = broken_by(BEFORE, with_fields(name, fields))
    assert found.startswith(f"{name}: ") and why in found


def test_a_message_or_a_subject_that_is_gone_or_another() -> None:
    now = deepcopy(BEFORE)
    del now.messages["Beat"]
    now.messages["Params"] = msgspec.structs.replace(now.messages["Params"], tag="p")
    now.subjects["PING"] = "slackwater.ask"
    assert broken_by(BEFORE, now) == [
        "PING: was slackwater.ping",
        "Beat: is gone",
        "Params: is told apart, or laid out, in another way",
    ]


class Before(msgspec.Struct, array_like=True):
    host: str


class Now(msgspec.Struct, array_like=True):
    host: str
    rack: str = ""


def test_that_is_how_messages_are_read() -> None:
    """A place more, or less, than the reader knows."""
    assert decode(encode(Now("a", "b")), Before) == Before("a")
    assert decode(encode(Before("a")), Now) == Now("a")
