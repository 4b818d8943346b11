"""Requests made of the gateway's own OpenAPI document, good and bad ones, at a real gateway with the sim engine. None
is answered with a 5xx, and every answer is as the document says. The slow run is the same with more requests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from services.gateway.api.app import make_routes
from shared.openai.completions.requests import CHAT, TEXT
from shared.openai.embeddings.requests import EMBEDDINGS
from shared.openai.responses.requests import RESPONSES
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
MAX_TOKENS = 4
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
COMPLETIONS = (CHAT, TEXT)
CONSTRAINTS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "min_tokens")
FORM = "multipart/form-data"
QUERY_LISTS = ("api_key_ids", "group_by")
CANCEL = "POST /v1/batches/{batch_id}/cancel"
LONG = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8000, "ignore_eos": True}
PRESET = ("--preset", "sarathi++")  # its budget needs no profiler
FEW, MANY = 16, 100
SCHEMA = schemathesis.openapi.from_dict(make_routes(keys_required=False).openapi())
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}


def can_be_wrong(name: str) -> bool:
    """Whether a request can break the document: a path's parameter can be any text."""
    return bool(OPERATIONS[name].body or OPERATIONS[name].query)


CASES = [
    (name, mode)
    for name in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or can_be_wrong(name)
]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue(*PRESET)
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.01")
        made.start_gateway()
        made.wait_ready()
        yield made


@pytest.fixture
def ids(rig: GatewayRig, name: str) -> dict[str, str]:
    """Of things that are there. The batch has ended, since only such can be deleted, but where it is to be cancelled,
    when it goes on for seconds."""
    line = {} if name != CANCEL else {"custom_id": "a", "method": "POST", "url": CHAT, "body": LONG}
    file_id = rig.openai.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch").id
    batch = rig.openai.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    state = "in_progress" if name == CANCEL else "failed"
    wait_until(lambda: rig.openai.batches.retrieve(batch.id).status == state, rig.logs)
    rig.http.post("/executors/executor-0/undrain")
    response = rig.openai.responses.create(model=MODEL, input="Hello", max_output_tokens=MAX_TOKENS)
    own = {"model_id": MODEL, "executor_id": "executor-0", "response_id": response.id}
    return own | {"file_id": file_id, "input_file_id": file_id, "batch_id": batch.id}


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_answers_are_as_the_document_says(
    rig: GatewayRig, ids: dict[str, str], name: str, mode: GenerationMode, examples: int
) -> None:
    statuses = set()

    @seed(examples)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        assume(not is_lost_on_the_way(case))
        use_what_is_there(case, ids)
        if mode is GenerationMode.POSITIVE:
            keep_what_no_schema_says(case)
        statuses.add(case.call_and_validate(base_url=rig.url, checks=CHECKS, timeout=30).status_code)

    check()
    assert mode is GenerationMode.NEGATIVE or 200 in statuses, statuses


def is_lost_on_the_way(case: Case) -> bool:
    """Whether what breaks the document is not what is sent: an empty list is no field of a form, and of a query's
    parameter one value is a list of one, and several are its last."""
    if case.media_type == FORM and isinstance(case.body, dict) and [] in case.body.values():
        return True
    return any(isinstance(value, list) != (name in QUERY_LISTS) for name, value in (case.query or {}).items())


def use_what_is_there(case: Case, ids: dict[str, str]) -> None:
    """Names that only this stack knows, so that good requests are served; short answers, so that all are quick."""
    for name, value in case.path_parameters.items():
        if isinstance(value, str) and len(value) % 2:
            case.path_parameters[name] = ids.get(name, value)
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    for field in LIMITS:
        if isinstance(body.get(field), int):
            body[field] = min(body[field], MAX_TOKENS)
    if isinstance(body.get("input_file_id"), str):
        body["input_file_id"] = ids["input_file_id"]


def keep_what_no_schema_says(case: Case) -> None:
    """Which fields go together, that a message has text, which grammars there are, and that this model's template takes
    no tools and its embeddings have one size."""
    body: Any = case.body
    if case.path in COMPLETIONS:
        without(body, *CONSTRAINTS, *(() if body.get("stream") else ("stream_options",)))
    if case.path == "/tokenize":
        body.pop("messages", None)
        body["prompt"] = "Hello"
    if case.path == CHAT:
        body["messages"] = [{"role": "user", "content": "Hello"} for _ in body["messages"]]
        without(body, "tools", "tool_choice")
    if case.path == EMBEDDINGS:
        without(body, "dimensions")
    if case.path in (RESPONSES, f"{RESPONSES}/input_tokens"):
        body |= {"input": "Hello", "max_output_tokens": MAX_TOKENS}
        without(body, "text", "tools", "tool_choice")


def without(body: dict[str, Any], *names: str) -> None:
    for name in names:
        body.pop(name, None)
