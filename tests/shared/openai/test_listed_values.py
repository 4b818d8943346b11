"""Values that are not among those of a type are told which are, wherever the field stands."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from shared.openai.errors import RequestError, decode_body
from shared.openai.listed_values import listed_values


class Inner(msgspec.Struct):
    kind: Literal["b", "a"] | None = None
    size: int = 0


class Outer(msgspec.Struct, rename={"renamed": "name[x]"}):
    one: Inner | None = None
    many: Annotated[list[Inner], Meta(max_length=9)] = []
    named: dict[str, Inner] = {}
    mixed: Literal[1, 2] | Annotated[str, Meta(max_length=1)] | None = None
    renamed: int = 0


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("one.kind", ["a", "b"]),
        ("many[3].kind", ["a", "b"]),
        ("named[...].kind", ["a", "b"]),
        ("mixed", [1, 2]),
        ("one.size", []),
        ("one", []),
        ("one.kind.more", []),
        ("many", []),
        ("nothing", []),
    ],
)
def test_they_are_found_by_the_path_of_an_error(path: str, values: list[Any]) -> None:
    assert listed_values(Outer, path) == values


def test_an_error_names_them() -> None:
    with pytest.raises(RequestError) as refused:
        decode_body(b'{"many": [{}, {"kind": "c"}]}', msgspec.json.Decoder(Outer))
    assert refused.value.message == "many[1].kind: invalid enum value 'c'; use one of a, b"
    assert refused.value.param == "many[1].kind"
