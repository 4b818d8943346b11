"""/openapi.json: that it is served, whole, and says what holds."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from services.gateway.access.api_keys import OPEN_PATHS
from services.gateway.api.app import make_routes
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.embeddings.requests import EMBEDDINGS
from shared.openai.endpoints import BATCH_ENDPOINTS
from tests.services.gateway.gateway_rig import GatewayRig


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


def test_a_gateway_serves_it(gateway: GatewayRig, document: dict[str, Any]) -> None:
    served = gateway.http.get("/openapi.json")
    assert served.headers["content-type"] == "application/json"
    assert served.json()["paths"] == document["paths"]
    assert served.json()["security"] == [{"api_key": []}, {}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as rig:
        rig.start_gateway()
        yield rig
