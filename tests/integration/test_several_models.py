"""A stack of two models that one slackwater.toml describes, on the sim engine, as its clients see it."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from shared.bus import Bus
from shared.bus.permissions import BusRole
from shared.protocol import subjects
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord
from tests.integration.conftest import LocalStack, configured_stack
from tests.services.gateway.gateway_rig import wait_until

CONFIG = """
[stack]
engine = "sim"

[[models]]
name = "org/Large.Model"
model = "smollm2-135m-instruct"
served_model_name = ["large", "default"]
executors = 2
sim_model = "llama2-7b"

[models.executor]
max_num_seqs = 32

[[models]]
name = "small"
model = "smollm2-135m-instruct"
sim_model = "qwen2.5-7b"
sim_device = "h100"

[models.strategy]
preset = "sarathi++"
"""
LARGE_QUEUE, SMALL_QUEUE = "offline-queue-large-model", "offline-queue-small"
EXECUTORS = ["executor-large-model-0", "executor-large-model-1", "executor-small-0"]
DONE_S = 120.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with configured_stack(tmp_path_factory.mktemp("models"), CONFIG, "large, small") as made:
        yield made


@pytest.fixture(scope="module")
def client(stack: LocalStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def finished_online(stack: LocalStack) -> dict[str, int]:
    """By executor."""
    beats = stack.status()["executors"]
    return {beat["info"]["executor_id"]: beat["counters"]["finished_online"] for beat in beats}


def upload(client: openai.OpenAI, bodies: list[dict[str, Any]]) -> str:
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def submit(client: openai.OpenAI, models: list[str], max_tokens: int = 4) -> str:
    """A line for each."""
    bodies = [{"model": model, "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True} for model in models]
    file_id = upload(client, bodies)
    made = client.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    return made.id


def until_done(client: openai.OpenAI, stack: LocalStack, batch_id: str) -> openai.types.Batch:
    def is_done() -> bool:
        return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")

    wait_until(is_done, stack.stderr, DONE_S)
    return client.batches.retrieve(batch_id)


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    text = client.files.content(file_id).text if file_id else ""
    return {line["custom_id"]: line for line in map(json.loads, text.splitlines())}


def test_every_process_has_a_name_that_says_whose_it_is(stack: LocalStack) -> None:
    status = stack.wait_healthy()
    names = [process["name"] for process in status["processes"]]
    queues = [LARGE_QUEUE, SMALL_QUEUE]
    assert names == ["supervisor", "nats-server", "predictor", "profiler", *queues, *EXECUTORS, "gateway"]
    models = {beat["info"]["executor_id"]: beat["info"]["spec"]["model"] for beat in status["executors"]}
    assert models == dict(zip(EXECUTORS, ["org/Large.Model", "org/Large.Model", "small"], strict=True))
    presets = [beat["info"]["strategy"]["preset"] for beat in status["executors"]]
    assert presets == ["hygen", "hygen", "sarathi++"]
    assert [beat["info"]["max_num_seqs"] == 32 for beat in status["executors"]] == [True, True, False]
    shown = stack.run("status").stdout
    assert "large, small" in shown and "executor-small-0  small by sim on" in shown


def test_all_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["large", "default", "small"]
    assert client.models.retrieve("default").id == "default" and client.models.retrieve("small").id == "small"


def test_a_request_goes_to_an_executor_of_its_model(stack: LocalStack, client: openai.OpenAI) -> None:
    before = finished_online(stack)
    messages: Any = [{"role": "user", "content": "Hello"}]
    for model, named, num in (("default", "large", 2), ("small", "small", 3)):
        for _ in range(num):
            answer = client.chat.completions.create(model=model, messages=messages, max_tokens=4, seed=1)
            assert answer.model == named and answer.choices[0].message.content

    def gained() -> list[int]:
        after = finished_online(stack)
        gains = [after[each] - before[each] for each in EXECUTORS]
        return [gains[0] + gains[1], gains[2]]

    wait_until(lambda: gained() == [2, 3], lambda: str(gained()))
    as_flex = {"service_tier": "flex"}
    flex = client.completions.create(model="small", prompt="Hello", max_tokens=4, extra_body=as_flex)
    assert flex.model == "small" and flex.choices[0].text


def test_an_unknown_model_is_none(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'large' and 'default' and 'small'") as refused:
        client.completions.create(model="org/Large.Model", prompt="Hello")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("medium")


def test_batches_of_each_run_at_the_same_time_and_one_models_queue_is_none_of_the_others_business(
    stack: LocalStack, client: openai.OpenAI
) -> None:
    stack.wait_healthy()
    large = submit(client, ["large"] * 100, 64)
    wait_until(lambda: client.batches.retrieve(large).status == "in_progress", stack.stderr, DONE_S)
    os.kill(stack.pids()[LARGE_QUEUE], signal.SIGSTOP)
    try:
        small = submit(client, ["small"] * 50)
        ended = until_done(client, stack, small)
        assert (ended.status, ended.request_counts and ended.request_counts.completed) == ("completed", 50)
        assert ended.model == "small" and client.batches.retrieve(large).status == "in_progress"
    finally:
        os.kill(stack.pids()[LARGE_QUEUE], signal.SIGKILL)
    ended = until_done(client, stack, large)
    assert (ended.status, ended.request_counts and ended.request_counts.completed) == ("completed", 100)
    output = lines_of(client, ended.output_file_id)
    assert len(output) == 100 and {line["response"]["body"]["model"] for line in output.values()} == {"large"}
    stack.wait_healthy()


def test_a_file_of_several_models_is_a_batch_of_its_first(stack: LocalStack, client: openai.OpenAI) -> None:
    ended = until_done(client, stack, submit(client, ["small", "large", "small", "default"]))
    assert (ended.status, ended.model) == ("completed", "small")
    assert sorted(lines_of(client, ended.output_file_id)) == ["line-0", "line-2"]
    errors = lines_of(client, ended.error_file_id)
    assert sorted(errors) == ["line-1", "line-3"]
    error = errors["line-1"]["response"]["body"]["error"]
    assert (errors["line-1"]["response"]["status_code"], error["code"], error["param"]) == (
        400,
        "model_mismatch",
        "model",
    )
    assert error["message"] == "the model 'large' is another one than 'small', of which all lines of this batch are"


def test_a_file_with_a_model_that_nobody_has_fails_as_ever(stack: LocalStack, client: openai.OpenAI) -> None:
    for models, line in ((["medium", "small"], 1), (["small", "medium"], 2)):
        ended = until_done(client, stack, submit(client, models))
        assert ended.status == "failed" and ended.errors is not None and ended.errors.data is not None
        assert (ended.errors.data[0].code, ended.errors.data[0].line) == ("model_not_found", line)


async def test_each_kind_of_executor_has_its_own_latency_model_and_budget(stack: LocalStack) -> None:
    status = stack.wait_healthy()
    keys = {beat["info"]["profile_key"] for beat in status["executors"]}
    assert len(keys) == 2
    bus = await Bus.connect(stack.bus(BusRole.PROFILER), "test")
    try:
        models = await (await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)).entries()
        budgets = await (await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)).entries()
    finally:
        await bus.close()
    assert {entry.key for entry in models if entry.value is not None} == keys
    (of_large,) = [beat for beat in status["executors"] if beat["info"]["executor_id"] == EXECUTORS[0]]
    with_budget = {entry.key for entry in budgets if entry.value is not None}
    assert with_budget == {of_large["info"]["profile_key"]}, "sarathi++ has none"


def test_metrics_tell_models_apart(stack: LocalStack, client: openai.OpenAI) -> None:
    for model in ("large", "small"):
        client.completions.create(model=model, prompt="Hello", max_tokens=2)
    text = httpx.get(f"{stack.url}/metrics").text
    for series in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_count"):
        lines = [line for line in text.splitlines() if line.startswith(series)]
        assert {found[1] for line in lines if (found := re.search('model_name="([^"]+)"', line))} == {"large", "small"}


def test_commands_ask_for_a_model(stack: LocalStack) -> None:
    chat = stack.run("chat", "Hello", "--model", "small", "--max-tokens", "4")
    assert (chat.returncode, chat.stderr) == (0, "(cut at 4 tokens; --max-tokens allows more)\n")
    assert chat.stdout.strip()
    doctor = stack.run("doctor", "--config", str(stack.data_dir.parent / "slackwater.toml"), "--json")
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert checks["executors"]["state"] == "ok" and checks["executors"]["found"].startswith("3: ")
