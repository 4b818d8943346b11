"""Messages and records of every type of ``shared.protocol``, made of the types themselves: good ones with values out of
a pool, and what nobody should send.

All is plain data (dicts, lists, numbers, texts), as msgspec encodes the structs, so that a value can be anything.
"""

import importlib
import pkgutil
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

import shared.protocol

BIG = 2**63 - 1  # the largest that MessagePack and JSON have for certain
INTEGERS = (0, 1, -1, 2, 7, 255, 65_536, 10**9, BIG, -BIG - 1, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", " ", "a", "*", ">", "a.b", "..", "../../etc/passwd", "\x00", "\u2028", "ü" * 300, "x" * 5000, "-1", "null")
BYTES = (b"", b"\x00", b"\xff" * 15, b"\x01" * 16, b"\xc1" * 5000)
ANYTHING: tuple[Any, ...] = (None, True, -1, 1.5, "x", b"x", [], {}, [[[]]], {"a": {"b": []}})
MAX_ITEMS = 3
MANY_ITEMS = 1000
MAX_DEPTH = 12

Names = dict[str, list[Any]]  # field -> values that were seen there


def message_types() -> list[type[msgspec.Struct]]:
    """Every struct of every module of ``shared.protocol``, in a fixed order."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in pkgutil.walk_packages(shared.protocol.__path__, "shared.protocol."):
        for name, each in vars(importlib.import_module(module.name)).items():
            if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module.name:
                found[f"{module.name}.{name}"] = each
    return [found[name] for name in sorted(found)]


class Maker:
    """Values of any type that msgspec knows. ``hostility``: how likely each leaf is one that nobody should send."""

    def __init__(self, random: Random, names: Names, hostility: float) -> None:
        self._random = random
        self._names = names
        self._hostility = hostility

    def value(self, of: Any) -> Any:
        """Of a type, as plain data."""
        return self._make(inspect.type_info(of), "", 0)

    def _make(self, of: inspect.Type, field: str, depth: int) -> Any:
        if isinstance(of, inspect.Metadata):
            return self._make(of.type, field, depth)
        if isinstance(of, inspect.UnionType):
            return self._make(self._random.choice(of.types), field, depth)
        if isinstance(of, inspect.StructType):
            return self._struct(of, depth)
        if isinstance(of, inspect.DataclassType):
            return {each.encode_name: self._make(each.type, each.name, depth + 1) for each in of.fields}
        if isinstance(of, inspect.CollectionType | inspect.TupleType | inspect.DictType):
            return self._collection(of, field, depth)
        return self._leaf(of, field)

    def _struct(self, of: inspect.StructType, depth: int) -> Any:
        values = {each.encode_name: self._make(each.type, each.name, depth + 1) for each in of.fields}
        is_tagged = of.tag_field is not None
        if of.array_like:
            return [*([of.tag] if is_tagged else []), *values.values()]
        return ({of.tag_field: of.tag} if is_tagged else {}) | values

    def _collection(self, of: inspect.Type, field: str, depth: int) -> Any:
        if isinstance(of, inspect.TupleType):
            return [self._make(each, field, depth + 1) for each in of.item_types]
        many = self._random.random() < self._hostility / 4 and depth < 2
        size = self._random.choice((0, MANY_ITEMS)) if many else self._random.randrange(MAX_ITEMS + 1)
        if depth > MAX_DEPTH:
            size = 0
        if isinstance(of, inspect.DictType):
            keys = [self._make(of.key_type, field, depth + 1) for _ in range(min(size, MAX_ITEMS))]
            return {key: self._make(of.value_type, field, depth + 1) for key in keys}
        assert isinstance(of, inspect.CollectionType)
        few = [self._make(of.item_type, field, depth + 1) for _ in range(min(size, MAX_ITEMS))]
        return few * (size // len(few)) if len(few) else []

    def _leaf(self, of: inspect.Type, field: str) -> Any:
        is_hostile = self._random.random() < self._hostility
        seen = self._names.get(field)
        if seen and not is_hostile:
            return self._random.choice(seen)
        return LEAVES.get(type(of), _anything)(of, self._random, is_hostile)


def _integer(of: inspect.IntType, random: Random, is_hostile: bool) -> int:
    return random.choice(INTEGERS) if is_hostile else max(random.randrange(10), of.ge or 0)


def _float(of: inspect.FloatType, random: Random, is_hostile: bool) -> float:
    if is_hostile:
        return random.choice(FLOATS)
    least, most = of.ge or of.gt or 0.0, of.le or of.lt or 10.0
    return least + random.random() * (most - least)


def _text(of: Any, random: Random, is_hostile: bool) -> str:
    return random.choice(TEXTS) if is_hostile else f"name-{random.randrange(3)}"


def _bytes(of: Any, random: Random, is_hostile: bool) -> bytes:
    return random.choice(BYTES) if is_hostile else random.randbytes(16 * random.randrange(3))


def _enum(of: Any, random: Random, is_hostile: bool) -> Any:
    return random.choice([each.value for each in of.cls])


def _literal(of: Any, random: Random, is_hostile: bool) -> Any:
    return random.choice(of.values)


def _anything(of: Any, random: Random, is_hostile: bool) -> Any:
    return random.choice(ANYTHING)


LEAVES: dict[type, Callable[[Any, Random, bool], Any]] = {
    inspect.IntType: _integer,
    inspect.FloatType: _float,
    inspect.StrType: _text,
    inspect.BytesType: _bytes,
    inspect.BoolType: lambda of, random, is_hostile: random.random() < 0.5,
    inspect.NoneType: lambda of, random, is_hostile: None,
    inspect.EnumType: _enum,
    inspect.LiteralType: _literal,
}


def harvest(message: Any, names: Names) -> None:
    """Keep the leaves of a message that was seen, by their fields; a few of each."""
    if isinstance(message, dict):
        for field, value in message.items():
            is_leaf = not isinstance(value, dict | list) and value is not None
            if is_leaf and isinstance(field, str) and value not in (seen := names.setdefault(field, [])):
                del seen[: -MAX_ITEMS * 4]
                seen.append(value)
            harvest(value, names)
    elif isinstance(message, list):
        for each in message:
            harvest(each, names)


def mutate(message: Any, random: Random) -> Any:
    """The same with one thing in it changed: a value of its own kind or of none, a part left out, added or doubled."""
    if isinstance(message, dict) and message and random.random() < 0.9:
        field = random.choice(list(message))
        if random.random() < 0.1:
            return {each: value for each, value in message.items() if each != field}
        if random.random() < 0.05:
            return {**message, "of_another_version": random.choice(ANYTHING)}
        return {**message, field: mutate(message[field], random)}
    if isinstance(message, list) and message and random.random() < 0.9:
        place = random.randrange(len(message))
        if random.random() < 0.2:
            return message[:place] + message[place + 1 :] if random.random() < 0.5 else [*message, message[place]]
        return [*message[:place], mutate(message[place], random), *message[place + 1 :]]
    for kind, pool in ((bool, (True, False)), (int, INTEGERS), (float, FLOATS), (str, TEXTS), (bytes, BYTES)):
        if isinstance(message, kind) and random.random() < 0.8:
            return random.choice(pool)
    return random.choice(ANYTHING)


def spoil(data: bytes, random: Random) -> bytes:
    """Bytes that were an encoded message: cut, with others in them, behind them, or others altogether."""
    place = random.randrange(len(data) + 1)
    return random.choice(
        (
            data[:place],
            data[:place] + random.randbytes(8) + data[place + 8 :],
            data + random.randbytes(4),
            random.randbytes(random.randrange(64)),
            b"",
            b"\xc1",
            b"\x91" * 5000,
            b"\xdd\xff\xff\xff\xff",
            b"{" * 5000,
        )
    )
