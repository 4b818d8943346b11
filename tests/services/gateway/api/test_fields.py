"""Fields beside a prompt, by what a client sees of them: vLLM's own, online, streamed, as flex and in a batch, and
across an executor's death; those that are not served; and what is nested or large."""

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Hello", "max_tokens": 40, "seed": 7}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "seed": 7}
EOS = 2
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


def complete(rig: GatewayRig, body: dict[str, Any]) -> dict[str, Any]:
    """The first choice."""
    endpoint = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    answer = rig.http.post(endpoint, json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def text_of(rig: GatewayRig, **fields: Any) -> str:
    text: str = complete(rig, TEXT | fields)["text"]
    return text


@pytest.mark.parametrize("tier", ["default", "flex"])
def test_answers_keep_to_what_is_asked_for(rig: GatewayRig, tier: str) -> None:
    regex = r"\d{3}-\d{4}"
    for fields in ({"structured_outputs": {"regex": regex}}, {"guided_regex": regex}):
        choice = complete(rig, CHAT | fields | {"service_tier": tier})
        assert re.fullmatch(regex, choice["message"]["content"]) and choice["finish_reason"] == "stop"
    assert text_of(rig, guided_choice=["left", "right"], service_tier=tier) in ("left", "right")
    grammar = 'root ::= "a" ("b" | "c")+ "d"'
    assert re.fullmatch("a[bc]+d", text_of(rig, structured_outputs={"grammar": grammar}, service_tier=tier))
    with rig.http.stream("POST", "/v1/completions", json=TEXT | {"guided_choice": ["left"], "stream": True}) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "left"


def test_lines_of_a_batch_do_too_and_a_bad_one_fails_alone(rig: GatewayRig) -> None:
    changes: list[dict[str, Any]] = [
        {"guided_choice": ["left", "right"]},
        {"guided_regex": "("},
        {"allowed_token_ids": [28], "max_tokens": 3},
        {"include_stop_str_in_output": True, "allowed_token_ids": [28], "stop": rig_text(rig, 28) * 2},
    ]
    batch_id = rig.submit_batch(TEXT | change for change in changes)
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
    batch = rig.openai.batches.retrieve(batch_id)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(batch.output_file_id).text.splitlines()]
    texts = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}
    letter = rig_text(rig, 28)
    assert texts.pop("line-0") in ("left", "right")
    assert texts == {"line-2": letter * 3, "line-3": letter * 2}
    (failed,) = [json.loads(line) for line in rig.openai.files.content(batch.error_file_id).text.splitlines()]
    assert failed["response"]["body"]["error"]["param"] == "guided_regex"


def rig_text(rig: GatewayRig, token_id: int) -> str:
    return text_of(rig, allowed_token_ids=[token_id], max_tokens=1)


def test_an_answer_has_its_least_tokens_and_shows_what_it_is_asked_to(rig: GatewayRig) -> None:
    fields = {"allowed_token_ids": [EOS, 28], "logit_bias": {str(EOS): 100}}
    letter = rig_text(rig, 28)
    assert text_of(rig, **fields, min_tokens=5).startswith(letter * 5)
    ended = text_of(rig, allowed_token_ids=[EOS], max_tokens=4, ignore_eos=True, skip_special_tokens=False)
    assert ended == "<|im_end|>" * 4
    shown = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert text_of(rig, allowed_token_ids=[EOS], **shown) == "<|im_end|>"
    assert text_of(rig, allowed_token_ids=[EOS], skip_special_tokens=False) == ""
    assert text_of(rig, allowed_token_ids=[28], stop_token_ids=[28], include_stop_str_in_output=True) == letter
    usual = text_of(rig, max_tokens=3, ignore_eos=True)
    assert text_of(rig, max_tokens=3, ignore_eos=True, bad_words=[usual]) != usual


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


def test_an_answer_goes_on_as_it_was_where_its_executor_died(rig: GatewayRig) -> None:
    regex = "([0-9]{4}-){30}"
    fields: dict[str, Any] = {"guided_regex": regex, "max_tokens": 400, "logit_bias": {"28": 1}}
    expected = text_of(rig, **fields)
    with rig.http.stream("POST", "/v1/completions", json=TEXT | fields | {"stream": True}) as stream:
        chunks = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {"))
        texts = [next(chunks)["choices"][0]["text"] for _ in range(4)]
        rig.stop("executor-0", signal.SIGKILL)
        rig.start_executor("executor-1", "--sim-time-scale", "0.1", "--preset", "sarathi++")
        texts += [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == expected and re.fullmatch(regex, expected)
