"""LoRA adapters as models that share their model's executors: on the sim engine, as clients see them, and slowly on
vLLM's with adapters made on the spot."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack, configured_stack
from tests.integration.test_several_models import finished_online, lines_of, submit, until_done
from tests.services.executor.lora_adapters import make_adapter
from tests.services.gateway.gateway_rig import wait_until
from tests.with_vllm import NEEDS_VLLM

CONFIG = """
[stack]
engine = "sim"

[[models]]
model = "smollm2-135m-instruct"
served_model_name = ["base", "default"]
lora_modules = ["sql=./adapters/sql", "org/chat=someone/chat-adapter"]
executors = 2

[[models]]
name = "other"
model = "smollm2-135m-instruct"
"""
LONG = "The committee met on Tuesday to discuss the budget. " * 12
SEEDED = {"seed": 7, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
CALLED = {"base": "base", "default": "base", "sql": "sql", "org/chat": "org/chat"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with configured_stack(tmp_path_factory.mktemp("adapters"), CONFIG, "base, other") as made:
        yield made


@pytest.fixture(scope="module")
def client(stack: LocalStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def text_of(client: openai.OpenAI, model: str, prompt: str = "Once", **options: Any) -> str:
    return client.completions.create(model=model, prompt=prompt, **SEEDED | options).choices[0].text


def num_cached(client: openai.OpenAI, model: str, prompt: str) -> tuple[str, int]:
    """What it says, and how many tokens of the prompt were in the prefix cache."""
    answer = client.completions.create(model=model, prompt=prompt, **SEEDED)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens or 0


def told_finished_online(stack: LocalStack) -> float:
    """As the gateway has heard it from its executors, which have told it before what their caches have of these."""
    lines = httpx.get(f"{stack.url}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("slackwater_executor_finished_online_total{")
    )


def test_all_are_listed_with_what_they_belong_to(stack: LocalStack, client: openai.OpenAI) -> None:
    listed = [(each["id"], each["root"], each["parent"]) for each in httpx.get(f"{stack.url}/v1/models").json()["data"]]
    assert listed == [
        ("base", "base", None),
        ("default", "base", None),
        ("sql", "./adapters/sql", "base"),
        ("org/chat", "someone/chat-adapter", "base"),
        ("other", "other", None),
    ]
    assert client.models.retrieve("org/chat").id == "org/chat"
    beats = {beat["info"]["spec"]["model"]: beat["info"]["spec"] for beat in stack.wait_healthy()["executors"]}
    assert beats["smollm2-135m-instruct"]["adapters"] == ["sql", "org/chat"] and beats["other"]["adapters"] == []
    assert "\n  adapters sql, org/chat\n" in stack.run("status").stdout


def test_each_endpoint_takes_them(stack: LocalStack, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    texts = {}
    for model, called in CALLED.items():
        chat = client.chat.completions.create(model=model, messages=messages, **SEEDED)
        assert chat.model == called and client.embeddings.create(model=model, input="Hello").model == called
        response = client.responses.create(model=model, input="Hello", max_output_tokens=16)
        assert response.model == called
        assert httpx.post(f"{stack.url}/tokenize", json={"model": model, "prompt": "Once"}).json()["count"] == 1
        flex = text_of(client, model, extra_body={"ignore_eos": True, "service_tier": "flex"})
        assert flex == text_of(client, model), "each has tokens of its own, whoever schedules it"
        texts[model] = flex, tuple(client.embeddings.create(model=model, input="Hello").data[0].embedding)
    assert texts["default"] == texts["base"] and len(set(texts.values())) == 3
    with pytest.raises(openai.NotFoundError, match="this server has 'base' and 'default' and 'sql' and 'org/chat' and"):
        client.completions.create(model="sql2", prompt="Hello")


def test_no_kv_is_shared_between_them(stack: LocalStack, client: openai.OpenAI) -> None:
    """Each finds its own beginning in the cache, and nobody else's; of two executors the router prefers who has it."""
    prompt = LONG + "It went on."
    before = sum(finished_online(stack).values())
    first = {model: num_cached(client, model, prompt) for model in ("base", "sql", "org/chat")}
    assert [cached for _, cached in first.values()] == [0, 0, 0] and len({text for text, _ in first.values()}) == 3
    wait_until(lambda: told_finished_online(stack) == before + 3, stack.stderr)

    def is_found() -> bool:
        """Once the gateway has heard who has it, which may be a moment later."""
        again = {model: num_cached(client, model, prompt) for model in ("sql", "org/chat", "base")}
        assert all(again[model][0] == text for model, (text, _) in first.items())
        return min(cached for _, cached in again.values()) > 100

    wait_until(is_found, stack.stderr)


def test_one_whose_executor_dies_goes_on_with_its_adapter(stack: LocalStack, client: openai.OpenAI) -> None:
    expected = text_of(client, "sql", max_tokens=600)
    stream = client.completions.create(model="sql", prompt="Once", stream=True, **SEEDED | {"max_tokens": 600})
    pieces = [next(stream).choices[0].text]
    running: list[str] = []

    def is_running() -> bool:
        running[:] = [beat["info"]["executor_id"] for beat in stack.status()["executors"] if beat["online_running"]]
        return bool(running)

    wait_until(is_running, stack.stderr)
    os.kill(stack.pids()[running[0]], signal.SIGKILL)
    pieces += [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == expected
    assert "request resumed" in (stack.data_dir / "logs" / "gateway.log").read_text()
    stack.wait_healthy()


def test_a_batch_has_one_of_them(stack: LocalStack, client: openai.OpenAI) -> None:
    ended = until_done(client, stack, submit(client, ["sql", "base", "sql", "org/chat", "other"]))
    assert (ended.status, ended.model) == ("completed", "sql")
    output, errors = lines_of(client, ended.output_file_id), lines_of(client, ended.error_file_id)
    assert sorted(output) == ["line-0", "line-2"] and sorted(errors) == ["line-1", "line-3", "line-4"]
    assert {line["response"]["body"]["model"] for line in output.values()} == {"sql"}
    codes = {line["response"]["body"]["error"]["code"] for line in errors.values()}
    assert codes == {"model_mismatch"}
    ended = until_done(client, stack, submit(client, ["default", "sql", "base"]))
    assert (ended.model, sorted(lines_of(client, ended.error_file_id))) == ("base", ["line-1"])


def test_a_batch_runs_with_its_adapter(stack: LocalStack, client: openai.OpenAI) -> None:
    texts = {}
    for model in ("base", "sql"):
        body = {"model": model, "prompt": LONG, "max_tokens": 8, "seed": 5, "ignore_eos": True}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}
        uploaded = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
        ended = until_done(client, stack, batch.id)
        texts[model] = lines_of(client, ended.output_file_id)["one"]["response"]["body"]["choices"][0]["text"]
        assert texts[model] == text_of(client, model, LONG, seed=5, max_tokens=8)
    assert texts["base"] != texts["sql"]


def test_keys_and_usage_tell_them_apart(stack: LocalStack) -> None:
    made = json.loads(stack.run("key", "create", "sql-only", "--models", "sql", "--json").stdout)
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=made["key"], max_retries=0, timeout=120) as client:

        def known() -> bool:
            return [model.id for model in client.models.list()] == ["sql"]

        wait_until(known, stack.stderr)
        assert text_of(client, "sql")
        for model in ("base", "org/chat"):
            with pytest.raises(openai.NotFoundError):
                text_of(client, model)
        ended = until_done(client, stack, submit(client, ["sql", "base"]))
        assert (ended.model, sorted(lines_of(client, ended.error_file_id))) == ("sql", ["line-1"])
        with pytest.raises(openai.NotFoundError):
            submit(client, ["base", "sql"])

    def used() -> dict[str, int]:
        asked = {"start_time": 0, "limit": 1, "group_by": "model", "api_key_ids": "sql-only"}
        url = f"{stack.url}/v1/organization/usage/completions"
        pages = httpx.get(url, params=asked | {"start_time": int(ended.created_at)}).json()["data"]
        return {each["model"]: each["num_model_requests"] for page in pages for each in page["results"]}

    wait_until(lambda: used() == {"sql": 2}, lambda: str(used()))


def test_boards_of_vllm_show_their_requests_as_their_model_s(stack: LocalStack, client: openai.OpenAI) -> None:
    def num_timed() -> Counter[str]:
        text, counts = httpx.get(f"{stack.url}/metrics").text, Counter[str]()
        for name, count in re.findall(
            r'vllm:e2e_request_latency_seconds_count\{.*model_name="([^"]+)".*\} (\S+)', text
        ):
            counts[name] += int(float(count))
        return counts

    before = num_timed()
    text_of(client, "org/chat")
    assert num_timed() == before + Counter(["base"])


def test_what_cannot_be_is_refused_before_anything_starts(stack: LocalStack, tmp_path: Path) -> None:
    for options, said in (
        (("--engine", "torch", "--lora-modules", "sql=./sql"), "the torch engine runs no LoRA adapters"),
        (("--engine", "sim", "--lora-modules", "sql"), "'sql' names no adapter: write name=path"),
        (("--engine", "sim", "--lora-modules", "a=./a,a=./b"), "two adapters are called 'a'"),
        (("--engine", "sim", "--lora-modules", f"{MODEL}=./a"), f"two models are called '{MODEL}'"),
        (("--engine", "sim", "--lora-modules", "a b=./a"), "'a b' is no name of an adapter"),
    ):
        refused = stack.run("up", "--data-dir", str(tmp_path / "stack"), *options)
        assert refused.returncode == 2 and said in refused.stderr, refused.stderr
    assert not (tmp_path / "stack").exists()


@pytest.mark.slow
@NEEDS_VLLM
def test_a_stack_of_vllm_with_adapters(model_folder: Path, tmp_path: Path) -> None:
    folders = [make_adapter(model_folder, tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    modules = ",".join(f"{folder.name}={folder}" for folder in folders)
    options = ("--engine", "vllm", "--kv-blocks", "64", "--threads", "1", "--preset", "sarathi++")
    stack = LocalStack(tmp_path / "stack", *options, "--lora-modules", modules)
    try:
        stack.start()
        (beat,) = stack.wait_healthy()["executors"]
        assert beat["info"]["spec"]["adapters"] == ["one", "two"] and "-lora2x8." in beat["info"]["profile_key"]
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=240) as client:
            names = (MODEL, "one", "two")
            first = {model: num_cached(client, model, LONG) for model in names}
            again = {model: num_cached(client, model, LONG) for model in reversed(names)}
            assert [cached for _, cached in first.values()] == [0, 0, 0] and len(
                {text for text, _ in first.values()}
            ) == 3
            assert all(again[model][0] == first[model][0] and again[model][1] >= 96 for model in names)
            ended = until_done(client, stack, submit(client, ["one", "one", MODEL]))
            assert (ended.model, sorted(lines_of(client, ended.error_file_id))) == ("one", ["line-2"])
            assert len(lines_of(client, ended.output_file_id)) == 2
    finally:
        stack.close()
