"""Fields that are not served, and what is nested or large beside a prompt, by what a client sees of it, online and in a
batch."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--preset", "sarathi++")
        made.start_gateway()
        made.wait_ready()
        yield made


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_field_that_is_not_served_is_400_and_an_empty_one_is_not(rig: GatewayRig, endpoint: str) -> None:
    body = {"model": MODEL, "seed": 1} | BODIES[endpoint]
    for name, value in {"vllm_xargs": {"a": 1}, "cache_salt": "s", "temprature": 0}.items():
        answer = rig.http.post(endpoint, json=body | {name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, name, "unsupported_parameter")
        assert name in error["message"]
    neutral = {"guided_json": None, "bad_words": [], "vllm_xargs": {}, "user": "u", "store": False}
    assert rig.http.post(endpoint, json=body | neutral).status_code == 200


@pytest.mark.parametrize("endpoint", BODIES)
@pytest.mark.parametrize("depth", [700, 10_000])
def test_what_is_nested_too_deeply_is_400(rig: GatewayRig, endpoint: str, depth: int) -> None:
    nested = '{"items":' * depth + "{}" + "}" * depth
    schema = f'{{"type": "json_schema", "name": "a", "json_schema": {{"name": "a", "schema": {nested}}}}}'
    fields = {
        "/v1/responses": {"text": f'{{"format": {schema}}}', "metadata": nested},
        "/v1/chat/completions": {"response_format": schema, "tool_choice": nested, "metadata": nested},
        "/v1/completions": {"response_format": schema, "prompt": nested, "metadata": nested},
    }
    for name, value in (fields[endpoint] | {"unknown": nested}).items():
        body = json.dumps({"model": MODEL} | BODIES[endpoint])[:-1] + f', "{name}": {value}}}'
        answer = rig.http.post(endpoint, content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 400, (name, answer.text)


def test_a_line_fails_alone_that_asks_for_what_is_not_served_or_for_too_much(rig: GatewayRig) -> None:
    plain = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    changes: list[dict[str, Any]] = [
        {},
        {"cache_salt": "s"},
        {"stop_token_ids": [5] * 1_000_000},
        {"stop_token_ids": [], "cache_salt": None},
    ]
    batch_id = rig.submit_batch(plain | change for change in changes)
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
    batch = rig.openai.batches.retrieve(batch_id)
    assert batch.request_counts is not None and batch.error_file_id is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
    lines = [json.loads(line) for line in rig.openai.files.content(batch.error_file_id).text.splitlines()]
    errors = {line["custom_id"]: line["response"] for line in lines}
    assert {name: each["status_code"] for name, each in errors.items()} == {"line-1": 400, "line-2": 400}
    params = [errors[name]["body"]["error"]["param"] for name in ("line-1", "line-2")]
    assert params == ["cache_salt", "stop_token_ids"]
