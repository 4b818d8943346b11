"""The structs that routes read and answer with: as JSON, and as they describe a route in /openapi.json."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Response

from shared.openai.objects import ErrorAnswer

Schema = dict[str, Any]
Content = dict[str, dict[str, Schema]]  # media type -> {"schema": ...}

REF = "#/components/schemas/{name}"
JSON = "application/json"
BINARY: Schema = {"type": "string", "format": "binary"}

_described: dict[type[msgspec.Struct], None] = {}  # by all routes together, in the order of their declaration
_encoder = msgspec.json.Encoder()


class JsonResponse(Response):
    """Encodes plain data and msgspec structs."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


def answers(
    answer: Content, *, body: Content | None = None, errors: Mapping[int | str, Content] | None = None
) -> dict[str, Any]:
    """Arguments for a route's decorator. ``errors``: those that do not have OpenAI's shape, by status."""
    described: dict[str, Any] = {
        "response_class": Response,  # has no media type of its own, which FastAPI would add
        "responses": {
            200: _response("The answer.", answer),
            "4XX": _response("The request is at fault, or is too much at the moment.", json_of(ErrorAnswer)),
            "5XX": _response("The server cannot answer it, or not now.", json_of(ErrorAnswer)),
            **{status: _response("Not now.", content) for status, content in (errors or {}).items()},
        },
    }
    if body is not None:
        described["openapi_extra"] = {"requestBody": {"required": True, "content": body}}
    return described


def json_of(struct: type[msgspec.Struct]) -> Content:
    """JSON of a struct, which is one of the document's components from here on."""
    _described[struct] = None
    (reference,), _ = msgspec.json.schema_components((struct,), ref_template=REF)
    return {JSON: {"schema": reference}}


def components() -> dict[str, Schema]:
    """Of all that ``json_of`` was told, and of what they are made of, by name."""
    _, schemas = msgspec.json.schema_components(_described, ref_template=REF)
    return schemas


def events_of(data: str) -> Content:
    """Server-sent events, as a client reads each: its data, and its name where it has one."""
    event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string", "description": data}}}
    return {"text/event-stream": {"schema": event}}


def _response(description: str, content: Content) -> dict[str, Any]:
    header = {"description": "the request's id, as the logs have it", "schema": {"type": "string"}}
    return {"description": description, "content": content, "headers": {"x-request-id": header}}
