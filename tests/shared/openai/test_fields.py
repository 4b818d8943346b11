"""Fields that are looked at by their name alone, and how much and how deep what they hold may be."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shared.openai.errors import MAX_MESSAGE_LENGTH, RequestError, decode_body
from shared.openai.fields import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_REFERRED_LEVELS,
    MAX_SHOWN_NAME,
    OtherFields,
    check_depth,
    check_field,
    check_items,
    check_multiples,
    check_references,
    read_fields,
)

OTHERS = OtherFields(("ignored",), {"refused": (1, "auto"), "never": ()})


def read(**fields: Any) -> dict[str, Any]:
    found = read_fields(msgspec.json.encode(fields), ("served",), OTHERS)
    return {name: msgspec.json.decode(value) for name, value in found.items()}


def test_all_fields_come_back_by_name() -> None:
    fields = {"served": {"a": [None]}, "ignored": 5, "refused": "auto", "never": [], "unknown": None}
    assert read(**fields) == fields


@pytest.mark.parametrize("value", [None, "", [], {}, {"a": None}, {"a": None, "b": None}])
@pytest.mark.parametrize("name", ["refused", "never", "unknown"])
def test_what_asks_for_nothing_is_taken(name: str, value: Any) -> None:
    assert read(**{name: value}) == {name: value}


@pytest.mark.parametrize("value", [0, False, "a", [None], {"a": None, "b": 0}])
def test_what_asks_for_something_is_refused_with_what_to_write_instead(value: Any) -> None:
    for name in ("never", "unknown"):
        with pytest.raises(RequestError, match=f"^{name} is not supported; leave it out$") as refused:
            read(served=1, **{name: value})
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
    with pytest.raises(
        RequestError, match=r'refused is not supported with this value; .* set it to 1 or "auto"$'
    ) as other:
        read(refused=value)
    assert (other.value.param, other.value.code) == ("refused", "unsupported_value")


def test_a_number_is_no_truth_value() -> None:
    check_field("field", 1.0, (1,))
    check_field("field", False, (False,))
    for value, accepted in ((True, 1), (1, True), (0, False), (False, 0)):
        with pytest.raises(RequestError, match="not supported with this value"):
            check_field("field", value, (accepted,))


def test_an_objects_nulls_are_as_absent() -> None:
    check_field("field", {"effort": "none", "summary": None}, ({"effort": "none"},))
    with pytest.raises(RequestError):
        check_field("field", {"effort": "none", "summary": "auto"}, ({"effort": "none"},))


def test_a_name_is_shown_up_to_its_limit() -> None:
    for length in (MAX_SHOWN_NAME, MAX_SHOWN_NAME + 1):
        with pytest.raises(RequestError) as refused:
            read(**{"x" * length: 1})
        assert refused.value.param == "x" * MAX_SHOWN_NAME


def arrays(*bounds: dict[str, Any]) -> dict[str, Any]:
    """One with these bounds within another, and so on."""
    schema: dict[str, Any] = {"title": "innermost"}
    for each in bounds:
        schema = {"type": "array", "items": schema} | each
    return schema


@pytest.mark.parametrize("name", ["minItems", "maxItems"])
def test_items_are_counted_over_all_of_a_schema(name: str) -> None:
    """In objects and lists, however deep; of two bounds the greater one."""
    half = MAX_ITEMS // 2
    both = {"minItems": 1, "maxItems": half}
    for schemas in (
        [{name: MAX_ITEMS}],
        [{name: float(MAX_ITEMS)}],
        [arrays({name: half}, both)],
        [{name: half}, {"anyOf": [{"title": "x"}, {"allOf": [both]}]}],
        [{"properties": {name: {"type": "array", name: MAX_ITEMS}}}],  # a property of that name is no bound
        [{name: "many"}, {name: None}, {name: MAX_ITEMS}],
    ):
        check_items("field", *schemas)
        with pytest.raises(RequestError, match=rf"^field: minItems and maxItems come to more than {MAX_ITEMS} in all$"):
            check_items("field", {"items": {name: 1}}, *schemas)


def test_remainders_are_counted_over_all_of_a_schema() -> None:
    """By the least common multiple of what is left without the factors 2 and 5."""
    for multiple in (
        1,
        5,
        0.01,
        10**40,
        12.345,
        3600,
        86400,
        1024,
        0,
        -7,
        2.5e-7,
        19_997,
        True,
        "many",
        None,
        math.inf,
    ):
        check_multiples("field", {"items": [{"multipleOf": multiple}]})
    check_multiples("field", *({"multipleOf": divisor} for divisor in range(1, 18_019) if 18_018 % divisor == 0))
    check_multiples("field", {"properties": {"multipleOf": {"multipleOf": 3}}})
    for schema in (
        {"multipleOf": 20_001},
        {"multipleOf": 999_983},
        {"multipleOf": 99.9983},
        {"multipleOf": 10**60 + 7},
        {"allOf": [{"multipleOf": 97}, {"items": {"multipleOf": 103.0}}, {"multipleOf": 101}]},
    ):
        with pytest.raises(RequestError, match=r"^field: multipleOf leaves more than 20000 remainders in all$"):
            check_multiples("field", schema)


def chained(length: int, link: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema of definitions of which each refers to the next."""
    definitions = {f"~{number}/": link({"$ref": f"#/$defs/%7E0{number + 1}~1"}) for number in range(length)}
    return {"$defs": {**definitions, f"~{length}/": {"type": "null"}}, "$ref": "#/$defs/~00~1"}


@pytest.mark.parametrize(
    ("link", "levels"),
    [
        (lambda reference: {"properties": {"x": reference}}, 3),
        (lambda reference: {"anyOf": [{"type": "null"}, reference]}, 3),
        (lambda reference: {"items": {"items": {"items": reference}}}, 4),
    ],
)
def test_levels_are_counted_over_all_that_a_schema_refers_to(link: Callable[[Any], Any], levels: int) -> None:
    most = (MAX_REFERRED_LEVELS - 1) // levels
    check_references("field", chained(most, link))
    with pytest.raises(RequestError, match=rf"^field refers to definitions of more than {MAX_REFERRED_LEVELS} levels"):
        check_references("field", chained(most + 1, link))


def test_references_may_go_round_and_to_what_is_not_there() -> None:
    itself = {"properties": {"next": {"$ref": "#"}, "list": {"items": [{"$ref": "#/properties/list/items/0"}] * 99}}}
    for schema in (
        itself,
        {"$ref": "#/no/where"},
        {"$ref": 5},
        {"properties": {"$ref": {}}},
        {"$ref": "#anchor"},
        {"$ref": "#/$ref/x"},
        True,
    ):
        check_references("field", schema)
    many = {"properties": {f"{number}": {"$ref": "#/$defs/a"} for number in range(9000)}, "$defs": {"a": itself}}
    check_references("field", many)


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}])
def test_values_are_nested_up_to_a_depth(wrap: Any) -> None:
    value: Any = "innermost"
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    check_depth("field", value)
    check_depth("field", [1, "a", None, {}])
    with pytest.raises(RequestError, match=f"^field is nested more than {MAX_DEPTH} levels deep$") as refused:
        check_depth("field", wrap(value))
    assert refused.value.param == "field"
    with pytest.raises(RequestError):
        check_depth("field", ["flat", wrap(value)])


class Inner(msgspec.Struct):
    size: int
    sizes: dict[str, int] = {}


class Outer(msgspec.Struct):
    name: str
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "name", "name is missing"),
        ({"name": "a", "inner": {}}, "inner.size", "inner.size is missing"),
        ({"name": 5}, "name", "name: expected `str`, got `int`"),
        ({"name": "a", "inner": {"size": "x"}}, "inner.size", "inner.size: expected `int`, got `str`"),
        (
            {"name": "a", "inner": {"size": 1, "sizes": {"b": "x"}}},
            "inner.sizes",
            "inner.sizes: expected `int`, got `str`",
        ),
        ([], None, "the request body: expected `object`, got `array`"),
    ],
)
def test_what_does_not_fit_is_named(body: Any, param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode_body(msgspec.json.encode(body), msgspec.json.Decoder(Outer))
    assert (refused.value.param, refused.value.message, refused.value.status) == (param, message, 400)


def test_a_key_of_the_whole_body_is_no_field() -> None:
    with pytest.raises(RequestError, match=r"^the request body: expected `int`, got `str`$") as refused:
        decode_body(b'{"a": "x"}', msgspec.json.Decoder(dict[str, int]))
    assert refused.value.param is None


def test_what_is_quoted_of_a_request_is_cut() -> None:
    error = RequestError("x" * (MAX_MESSAGE_LENGTH + 1), "field", "code", 404)
    assert str(error) == error.message == "x" * MAX_MESSAGE_LENGTH
    assert (error.param, error.code, error.status) == ("field", "code", 404)
