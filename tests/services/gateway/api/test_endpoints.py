"""Which endpoints there are: what /openapi.json says of those that are served, and what the official client is told of
OpenAI's others."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from services.gateway.access.api_keys import OPEN_PATHS
from services.gateway.api.app import make_routes
from services.gateway.api.unserved import SERVED, UNSERVED
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.embeddings.requests import EMBEDDINGS
from shared.openai.endpoints import BATCH_ENDPOINTS
from tests.services.gateway.gateway_rig import MODEL, GatewayRig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway()
        yield made


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return make_routes(keys_required=True).openapi()


def references(value: Any) -> Iterator[str]:
    """Every $ref anywhere in it."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_to_a_schema_and_every_schema_is_used(document: dict[str, Any]) -> None:
    used = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert used == set(document["components"]["schemas"])


def test_every_operation_says_what_it_answers_and_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    for each in operations:
        assert each["description"] and each["tags"]
        assert {"200", "4XX", "5XX"} <= set(each["responses"])
        assert each["responses"]["200"]["content"]
        assert "422" not in each["responses"]


def test_bodies_are_those_that_are_parsed(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    names = {CHAT: "ChatCompletionBody", TEXT: "TextCompletionBody"}
    for endpoint in ENDPOINTS:
        body = document["paths"][endpoint]["post"]["requestBody"]
        assert body["content"]["application/json"]["schema"]["$ref"].endswith(f"/{names[endpoint]}")
        prompt = "messages" if endpoint == CHAT else "prompt"
        assert sorted(schemas[names[endpoint]]["required"]) == sorted(["model", prompt])
    embeds = document["paths"][EMBEDDINGS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert embeds["$ref"].endswith("/EmbeddingBody") and schemas["EmbeddingBody"]["required"] == ["model", "input"]
    batch = schemas["CreateBatch"]["properties"]
    assert batch["endpoint"]["enum"] == list(BATCH_ENDPOINTS)
    windows = re.compile(batch["completion_window"]["pattern"])
    assert windows.match("24h") and windows.match("7d") and not windows.match("24 h")


@pytest.mark.parametrize("required", [True, False])
def test_keys_are_needed_where_they_are(required: bool) -> None:
    document = make_routes(keys_required=required).openapi()
    assert ({} in document["security"]) is not required
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert (operation.get("security") == []) is (path in OPEN_PATHS)


def test_a_gateway_serves_it(rig: GatewayRig, document: dict[str, Any]) -> None:
    served = rig.http.get("/openapi.json")
    assert served.headers["content-type"] == "application/json"
    assert served.json()["paths"] == document["paths"]
    assert served.json()["security"] == [{"api_key": []}, {}]


CALLS: list[Callable[[openai.OpenAI], Any]] = [
    lambda client: client.moderations.create(input="text"),
    lambda client: client.images.generate(prompt="a cat"),
    lambda client: client.audio.transcriptions.create(model=MODEL, file=b"RIFF"),
    lambda client: client.fine_tuning.jobs.list(),
    lambda client: client.vector_stores.retrieve("vs_1"),
    lambda client: client.conversations.create(),
    lambda client: client.responses.compact(model=MODEL, input="Hi"),
    lambda client: client.skills.list(),
]


@pytest.mark.parametrize("call", CALLS)
def test_the_client_is_told_what_is_served(rig: GatewayRig, call: Callable[[openai.OpenAI], Any]) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        call(rig.openai)
    assert (raised.value.code, raised.value.type) == ("unsupported_endpoint", "invalid_request_error")
    assert all(endpoint in raised.value.message for endpoint in SERVED)


@pytest.mark.parametrize("name", UNSERVED)
def test_each_of_them_says_why(rig: GatewayRig, name: str) -> None:
    for path in (f"/v1/{name}", f"/v1/{name}/anything/else"):
        error = rig.http.post(path).json()["error"]
        assert path in error["message"] and UNSERVED[name] in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/v1/files/file-1", "DELETE, GET, HEAD"),
        ("POST", "/dashboard/static/style.css", "GET, HEAD"),
    ],
)
def test_another_method_is_told_all_that_there_are(rig: GatewayRig, method: str, path: str, allowed: str) -> None:
    refused = rig.http.request(method, path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    error = refused.json()["error"]
    told = f"{method} is not served at {path}; use {allowed.replace(', ', ' or ')}"
    assert (error["code"], error["message"]) == ("method_not_allowed", told)


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("GET", "/models", "/v1/models"),
        ("POST", "/v1/v1/completions", "/v1/completions"),
        ("POST", "/v1/tokenize", "/tokenize"),
        ("GET", "//v1/batches", "/v1/batches"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("GET", "/v1/files/", "/v1/files"),
    ],
)
def test_a_base_url_that_is_wrong_is_told_what_there_is(rig: GatewayRig, method: str, path: str, near: str) -> None:
    refused = rig.http.request(method, f"{rig.url}{path}")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (404, "unknown_url")
    assert error["message"] == f"nothing is served at {method} {path}; {near} is: see to the client's base URL"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1", "/v1/chat", "/dashboard/static/nothing.js"])
def test_what_is_like_nothing_is_told_where_to_look(rig: GatewayRig, path: str) -> None:
    error = rig.http.get(path).json()["error"]
    assert error["code"] == "unknown_url" and error["message"].endswith(f"GET {path}; GET /docs says what is")


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/nope", "/v1/completions", "/docs"])
def test_head_is_answered_as_get_without_the_body(rig: GatewayRig, path: str) -> None:
    whole, head = rig.http.get(path), rig.http.head(path)
    assert head.status_code == whole.status_code and head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]
    assert rig.http.get("/health").json() == {"status": "ok"}  # over the same connection


def test_head_ends_where_get_would_not(rig: GatewayRig) -> None:
    head = rig.http.head("/dashboard/events", timeout=60)
    assert head.status_code == 200 and head.headers["content-type"].startswith("text/event-stream")
