"""The API in words, as Markdown, made of /openapi.json."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from shared.openai.fields import CHAT_FIELDS, EMBEDDING_FIELDS, RESPONSE_FIELDS, TEXT_FIELDS, OtherFields

Schema = Mapping[str, Any]

HEAD = """\
# HTTP API

Every endpoint of a gateway and every shape that it takes and gives, made of the document that a running one serves at
`/openapi.json`. Keys, limits and sizes are in [The gateway's protection](gateway.md).

Fields of a completion, response or embedding that are not listed are refused ([Other fields](#other-fields));
elsewhere, and within messages, they are ignored. Every answer carries `x-request-id`. From status 400 up the body is an
[ErrorAnswer](#erroranswer). HEAD is answered as GET, without the body.
"""
OTHER_FIELDS = {"chat": CHAT_FIELDS, "text": TEXT_FIELDS, "responses": RESPONSE_FIELDS, "embeddings": EMBEDDING_FIELDS}
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} pairs",
}


def reference_of(document: Schema) -> Iterator[str]:
    """In pieces that stand on lines of their own."""
    yield HEAD
    tag = ""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                yield f"## {tag.capitalize()}\n"
            yield from _operation(f"{method.upper()} {path}", operation)
    yield from _other_fields()
    yield "## Shapes\n"
    for name, schema in document["components"]["schemas"].items():
        yield f"### {name}\n"
        if "description" in schema:
            yield f"{' '.join(schema['description'].replace('``', '`').split())}\n"
        yield from _fields(schema)


def _operation(title: str, operation: Schema) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{operation['description']}\n"
    if "parameters" in operation:
        yield "| parameter | in | values | default |\n| --- | --- | --- | --- |"
        for each in operation["parameters"]:
            schema = each["schema"]
            yield f"| `{each['name']}` | {each['in']} | {_type(schema)} | {_default(schema)} |"
        yield ""
    if "requestBody" in operation:
        yield f"Body: {_content(operation['requestBody']['content'])}\n"
        for media_type in operation["requestBody"]["content"].values():
            if "properties" in media_type["schema"]:
                yield from _fields(media_type["schema"])
    yield f"Answer: {_content(operation['responses']['200']['content'])}\n"


def _other_fields() -> Iterator[str]:
    yield "## Other fields\n"
    yield (
        "What a completion or response may hold beside the fields of its shape. Some have no effect on the text, and "
        "are taken with any value. All others are refused with 400, also those that nobody knows, unless they ask for "
        "nothing: null, what is empty, and what the table names are accepted. The code is `unsupported_value` where "
        "the table names a value, else `unsupported_parameter`.\n"
    )
    yield "| field | of | accepted |\n| --- | --- | --- |"
    rows: dict[tuple[str, str], list[str]] = {}
    for kind, fields in OTHER_FIELDS.items():
        for name, accepted in _accepted(fields):
            rows.setdefault((name, accepted), []).append(kind)
    for (name, accepted), kinds in rows.items():
        yield f"| `{name}` | {', '.join(kinds)} | {accepted} |"
    yield ""


def _accepted(fields: OtherFields) -> Iterator[tuple[str, str]]:
    """In words, by the field's name."""
    yield from ((name, "anything, without effect") for name in fields.ignored)
    for name, values in fields.refused.items():
        yield name, " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in values)


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    yield "| field | values | default |\n| --- | --- | --- |"
    for name, field in schema["properties"].items():
        yield f"| `{name}` | {_type(field)} | {'required' if name in required else _default(field)} |"
    yield ""


def _content(content: Schema) -> str:
    described = []
    for media_type, value in content.items():
        schema = value["schema"]
        schema = schema.get("properties", {}).get("data", schema)  # of an event
        about = _type(schema) if "$ref" in schema else schema.get("description", "")
        described.append(f"`{media_type}`, {about}" if about else f"`{media_type}`")
    return "; or ".join(described)


def _type(schema: Schema) -> str:
    """In words, with links to shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return _bounded(f"list of {_type(schema.get('items', {}))}", schema)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return _bounded(f"object of {_type(schema['additionalProperties'])}", schema)
    return _bounded("bytes" if schema.get("format") == "binary" else kind, schema)


def _bounded(kind: str, schema: Schema) -> str:
    bounds = [text.format(_number(schema[name])) for name, text in BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _default(schema: Schema) -> str:
    if schema.get("default") is None:
        return ""
    return f"`{msgspec.json.encode(schema['default']).decode()}`"


def _number(bound: float) -> str:
    """Types whose bounds are equal are one to Python, so it may come as an int or as a float."""
    return f"{int(bound) if bound == int(bound) else bound:,}"
