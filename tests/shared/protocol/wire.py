"""What stands on the bus, told without the code: the fields of every message and record, and every subject.

A process of one version and one of the next are on one bus while a stack is upgraded. ``broken_by`` says what of a
change neither of the two could live with. ``python -m tests.shared.protocol.wire`` writes what the code has now, which
is done when a version is released: ``wire.json`` is that of the last one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from shared.protocol import subjects
from tests.fuzzing.messages import message_types

FILE = Path(__file__).with_name("wire.json")
ONE, OTHER = "one", "other"  # ids in a subject
DEFAULT = " = "


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """``fields``: the type of each, and ``= default`` where a message may be without it. ``tag``: by which it is told
    apart in a union. ``is_array``: its fields have places instead of names."""

    fields: dict[str, str]
    tag: str = ""
    is_array: bool = False
    omits_defaults: bool = False


class Wire(msgspec.Struct, frozen=True):
    """``subjects``: also the names of streams and buckets. ``revision``: a commit that has these, where it is known."""

    messages: dict[str, Message]
    subjects: dict[str, str]
    revision: str = ""

    @classmethod
    def of_the_code(cls) -> Wire:
        found: dict[str, Message] = {}
        for of in inspect.multi_type_info(message_types()):
            _describe(of, found)
        return cls(dict(sorted(found.items())), dict(_subjects()))

    @classmethod
    def of_the_last_version(cls) -> Wire:
        return msgspec.json.decode(FILE.read_bytes(), type=cls)


def broken_by(before: Wire, now: Wire) -> list[str]:
    """Why a process that knows one of the two cannot read, or does not hear, what one of the other sends."""
    moved = [f"{name}: was {was}" for name, was in before.subjects.items() if now.subjects.get(name) != was]
    found = [
        f"{name}: {why}"
        for name, message in before.messages.items()
        for why in (_changes(message, now.messages[name]) if name in now.messages else ["is gone"])
    ]
    return moved + found


def _changes(before: Message, now: Message) -> Iterator[str]:
    if (before.tag, before.is_array) != (now.tag, now.is_array):
        yield "is told apart, or laid out, in another way"
    if before.is_array and list(now.fields)[: len(before.fields)] != list(before.fields):
        yield "its fields have other places: new ones come last"
    for name, field in before.fields.items():
        (was, _, default), (is_now, _, new_default) = (
            text.partition(DEFAULT) for text in (field, now.fields.get(name, field))
        )
        if name not in now.fields:
            if not default:
                yield f"{name} is gone, without which those before cannot read it"
        elif is_now != was:
            yield f"{name} is {is_now}, and was {was}"
        elif default and not new_default:
            yield f"{name} is needed, and those before may leave it out"
        elif (before.omits_defaults or now.omits_defaults) and new_default != default:
            yield f"{name} means {new_default} where it is left out, and meant {default}"
    for name, field in now.fields.items():
        if name not in before.fields and DEFAULT not in field:
            yield f"{name} is new and needed, and those before do not send it"


def _describe(of: inspect.Type, found: dict[str, Message]) -> str:
    """The type in words; the messages that it consists of are added to what was ``found``."""
    match of:
        case inspect.Metadata(type=inner):
            return _describe(inner, found)
        case inspect.StructType() | inspect.DataclassType():
            name = of.cls.__qualname__
            if name not in found:
                found[name] = Message({})  # it may have itself in it
                found[name] = _message(of, found)
            return name
        case inspect.UnionType(types=types):
            return " | ".join(sorted(_describe(each, found) for each in types))
        case inspect.EnumType(cls=enum):
            return f"{enum.__name__}({', '.join(sorted(str(each.value) for each in enum))})"
        case inspect.LiteralType(values=values):
            return f"Literal({', '.join(sorted(map(repr, values)))})"
        case inspect.DictType(key_type=key, value_type=value):
            return f"dict[{_describe(key, found)}, {_describe(value, found)}]"
        case inspect.TupleType(item_types=items):
            return f"tuple[{', '.join(_describe(each, found) for each in items)}]"
        case inspect.CollectionType(item_type=item):
            return f"{type(of).__name__.removesuffix('Type').lower()}[{_describe(item, found)}]"
        case inspect.CustomType(cls=custom):
            return str(custom.__name__)
        case _:
            return type(of).__name__.removesuffix("Type").lower()


def _message(of: inspect.StructType | inspect.DataclassType, found: dict[str, Message]) -> Message:
    fields = {each.encode_name: _describe(each.type, found) + _default(each) for each in of.fields}
    if isinstance(of, inspect.DataclassType):
        return Message(fields)
    config = of.cls.__struct_config__
    return Message(fields, "" if of.tag is None else str(of.tag), of.array_like, config.omit_defaults)


def _default(field: inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{DEFAULT}{field.default_factory.__name__}()"
    return "" if field.default is msgspec.NODEFAULT else f"{DEFAULT}{field.default!r}"


def _subjects() -> Iterator[tuple[str, str]]:
    """Each constant, and what each function makes of ids."""
    of_model = subjects.of_model(ONE)
    for name in dir(subjects.ModelSubjects):
        if name.startswith("_") or name == "model":
            continue
        made: Any = getattr(of_model, name)
        ids = (OTHER,) if name != "failure" else (OTHER, ONE)
        yield f"of_model.{name}", made if isinstance(made, str) else made(*ids)
    for name, value in sorted(vars(subjects).items()):
        if name.isupper() and isinstance(value, str):
            yield name, value
        elif name.islower() and getattr(value, "__name__", "") == "format":
            yield name, value(ONE)


if __name__ == "__main__":
    head = subprocess.run(("git", "rev-parse", "HEAD"), capture_output=True, check=True, text=True).stdout.strip()
    wire = msgspec.structs.replace(Wire.of_the_code(), revision=head)
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(wire), indent=1) + b"\n")
    sys.stderr.write(f"{FILE.name} has what the code has\n")
