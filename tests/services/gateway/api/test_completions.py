"""Completions over real HTTP, bus and executor (sim engine), with the official client where it can send the request."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

MESSAGES: Any = [{"role": "user", "content": "Tell me a story about 😀"}]
LONG = 4000  # tokens; more than any of these tests waits for


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        made.start_gateway()
        made.wait_ready()
        yield made


def streamed_text(rig: GatewayRig, prompt: str, **fields: Any) -> str:
    chunks = rig.openai.completions.create(model=MODEL, prompt=prompt, stream=True, **fields)
    return "".join(chunk.choices[0].text for chunk in chunks)


def test_a_chat_is_the_same_streamed_and_whole(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 40}
    whole = rig.openai.chat.completions.create(**options)
    chunks = list(rig.openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and text
    assert chunks[0].choices[0].delta.role == whole.choices[0].message.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_text_is_the_same_streamed_and_whole_and_from_token_ids(rig: GatewayRig) -> None:
    token_ids = Tokenizer.from_folder(model_folder()).encode("Once upon")
    options: Any = {"seed": 5, "max_tokens": 30}
    whole = rig.openai.completions.create(model=MODEL, prompt="Once upon", **options)
    assert streamed_text(rig, "Once upon", **options) == whole.choices[0].text
    assert rig.complete(prompt=token_ids, **options).json()["choices"][0]["text"] == whole.choices[0].text


def test_logprobs_are_the_same_streamed_and_whole(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 40}
    options |= {"logprobs": True, "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
    (whole,) = rig.openai.chat.completions.create(**options).choices
    assert whole.logprobs is not None and whole.logprobs.content is not None
    chunks = [chunk.choices[0] for chunk in rig.openai.chat.completions.create(**options, stream=True)]
    streamed = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content or ()]
    assert [entry.to_dict() for entry in streamed] == [entry.to_dict() for entry in whole.logprobs.content]
    assert len(streamed) == 40 and {len(entry.top_logprobs) for entry in streamed} == {3}
    joined = b"".join(bytes(entry.bytes or ()) for entry in streamed)
    assert joined.decode(errors="replace") == whole.message.content
    assert (
        rig.complete(seed=5, logprobs=2, max_tokens=7, ignore_eos=True).json()["choices"][0]["logprobs"]["text_offset"][
            0
        ]
        == 0
    )


ANIMAL = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "is_big": {"type": "boolean"}},
    "required": ["kind", "is_big"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_its_schema(rig: GatewayRig, stream: bool) -> None:
    asked: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": ANIMAL, "strict": True}}
    options: Any = {"model": MODEL, "messages": MESSAGES, "response_format": asked, "stream": stream}
    texts, reasons = set(), set()
    for seed in range(8):
        answer: Any = rig.openai.chat.completions.create(**options, seed=seed)
        if stream:
            choices = [chunk.choices[0] for chunk in answer]
            text, reason = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        found = json.loads(text)
        assert found["kind"] in ("cat", "dog") and isinstance(found["is_big"], bool) and len(found) == 2
        texts.add(text)
        reasons.add(reason)
    assert len(texts) > 1 and reasons == {"stop"}


def test_an_answer_that_is_cut_says_so(rig: GatewayRig) -> None:
    asked = {"type": "json_object"}
    choice = rig.complete(response_format=asked, max_tokens=2).json()["choices"][0]
    assert (choice["finish_reason"], choice["text"][0]) == ("length", "{")


def test_a_schema_that_nothing_can_keep_to_is_refused(rig: GatewayRig) -> None:
    asked: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": {"type": "banana"}}}
    with pytest.raises(openai.BadRequestError, match="banana") as refused:
        rig.openai.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=asked)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("stop", [None, " the"])
def test_choices_are_those_of_their_seeds_streamed_and_whole(rig: GatewayRig, stop: str | None) -> None:
    options: Any = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 60, "n": 4, "stop": stop}
    whole = rig.openai.chat.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = [choice.message.content or "" for choice in whole.choices]
    assert len(set(texts)) == 4
    alone = rig.openai.chat.completions.create(**options | {"n": 1})
    assert (alone.choices[0].message.content, alone.choices[0].finish_reason) == (
        texts[0],
        whole.choices[0].finish_reason,
    )
    chunks = list(rig.openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    streamed, reasons, order = [""] * 4, [""] * 4, []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or ""
        order.append(choice.index)
    assert streamed == texts
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert order != sorted(order), "they come interleaved"
    usages = [usage for usage in (whole.usage, chunks[-1].usage, alone.usage) if usage is not None]
    prompts, outputs = [usage.prompt_tokens for usage in usages], [usage.completion_tokens for usage in usages]
    assert len(set(prompts)) == 1 and len(prompts) == 3, "the prompt counts once"
    assert outputs[0] == outputs[1] > outputs[2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_chunk_tells_the_usage_of_its_choice_so_far(rig: GatewayRig, path: str) -> None:
    """As vLLM has it, where the last one tells that of all."""
    asked: dict[str, Any] = {"model": MODEL, "n": 2, "max_tokens": 9, "ignore_eos": True, "stream": True}
    asked |= {"messages": MESSAGES} if "chat" in path else {"prompt": "Once upon"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    lines = rig.http.post(path, json=asked | {"stream_options": options}).text.splitlines()
    *chunks, last = [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: {")]
    told: list[list[int]] = [[], []]
    for chunk in chunks:
        (choice,), usage = chunk["choices"], chunk["usage"]
        told[choice["index"]].append(usage["completion_tokens"])
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for each in told:
        assert each == sorted(each) and len(set(each)) > 2
        assert (each[0] == 0) is ("chat" in path) and each[-1] == 9
    assert last["usage"]["completion_tokens"] == 18
    without = rig.http.post(path, json=asked | {"stream_options": {"continuous_usage_stats": True}})
    assert "usage" not in without.text


def test_the_first_event_of_a_chat_comes_with_its_first_text(rig: GatewayRig) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 5, "stream": True, "ignore_eos": True}
    with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
        first, *_ = response.iter_raw()
    events = first.decode().split("\n\n")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:2]]
    assert deltas[0]["role"] == "assistant" and deltas[1]["content"]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])
def test_a_token_whose_text_has_to_wait_is_an_event_all_the_same(rig: GatewayRig, chat: bool) -> None:
    options: Any = {"model": MODEL, "seed": 5, "max_tokens": 600, "stream": True, "extra_body": {"ignore_eos": True}}
    if chat:
        chunks = [chunk.choices[0] for chunk in rig.openai.chat.completions.create(messages=MESSAGES, **options)]
        texts = [chunk.delta.content for chunk in chunks if chunk.delta.role is None and chunk.finish_reason is None]
    else:
        parts = [chunk.choices[0] for chunk in rig.openai.completions.create(prompt="Once", **options)]
        texts = [part.text for part in parts if part.finish_reason is None]
    assert 0 < texts.count("") < len(texts) / 2, "ends within a character, or else shows its text at once"


def test_usage_counts_tokens_and_cache_hits(rig: GatewayRig) -> None:
    prompt = list(range(100, 164))
    rig.complete(prompt=prompt, ignore_eos=True)
    usage = rig.complete(prompt=prompt, ignore_eos=True, max_tokens=5).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (64, 5, 69)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


def test_many_streams_at_once_do_not_mix(rig: GatewayRig) -> None:
    def both(seed: int) -> tuple[str, str]:
        options: Any = {"seed": seed, "max_tokens": 50, "extra_body": {"ignore_eos": True}}
        whole = rig.openai.completions.create(model=MODEL, prompt=f"Story {seed}", **options)
        return whole.choices[0].text, streamed_text(rig, f"Story {seed}", **options)

    with ThreadPoolExecutor(16) as pool:
        pairs = list(pool.map(both, range(32)))
    assert all(whole == streamed for whole, streamed in pairs)
    assert len({whole for whole, _ in pairs}) == 32


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(rig: GatewayRig, stream: bool) -> None:
    options: Any = {"seed": 5, "max_tokens": 60, "ignore_eos": True, "prompt": "Stop here"}
    full = rig.complete(**options).json()["choices"][0]["text"]
    stop = full[25:32]
    body = rig.complete(**options, stop=[stop], stream=stream)
    if stream:
        events = [json.loads(line[6:]) for line in body.text.splitlines() if line.startswith("data: {")]
        text, reason = "".join(e["choices"][0]["text"] for e in events), events[-1]["choices"][0]["finish_reason"]
    else:
        text, reason = (body.json()["choices"][0][key] for key in ("text", "finish_reason"))
    assert (text, reason) == (full[: full.index(stop)], "stop")


def test_a_stream_is_server_sent_events_that_end_with_done(rig: GatewayRig) -> None:
    response = rig.complete(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_on_the_executor(rig: GatewayRig, stream: bool, n: int) -> None:
    aborted = rig.metric("slackwater_executor_aborted_total")
    body = {"model": MODEL, "prompt": "x", "max_tokens": LONG, "ignore_eos": True, "stream": stream, "n": n}
    with httpx.Client(base_url=rig.url) as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as response:
                assert next(response.iter_raw()).startswith(b"data: ")
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body, timeout=httpx.Timeout(10, read=0.3))
    wait_until(lambda: rig.metric("slackwater_live_requests") == 0, "the gateway still holds the request")
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total") == aborted + n, "the executor runs it still")
    wait_until(lambda: rig.metric("slackwater_executor_online_running") == 0, "the executor runs it still")


def test_a_reader_that_stalls_costs_the_gateway_no_memory_and_gets_everything(rig: GatewayRig) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True, "seed": 1}
    whole = rig.complete(**(body | {"stream": False})).json()["choices"][0]["text"]
    resident = rig.resident_bytes("gateway")
    finished = rig.metric("slackwater_finished_requests_total")
    with httpx.stream("POST", f"{rig.url}/v1/completions", json=body, timeout=60) as response:
        wait_until(lambda: rig.metric("slackwater_finished_requests_total") > finished, "still generating", 60)
        assert rig.resident_bytes("gateway") - resident < 20 * 1024**2
        lines = list(response.iter_lines())
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_models_are_listed(rig: GatewayRig) -> None:
    (model,) = rig.openai.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert rig.openai.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        rig.openai.models.retrieve("gpt-17")


BAD_REQUESTS: list[tuple[str, str, bytes, int]] = [
    ("POST", "/v1/completions", b"{", 400),
    ("POST", "/v1/completions", b"[1]", 400),
    ("POST", "/v1/completions", b"\xff", 400),
    ("POST", "/v1/completions", b'{"model": 5}', 400),
    ("POST", "/v1/completions", b'{"model": "gpt-17", "prompt": "x"}', 404),
    ("POST", "/v1/completions", b'{"model": "%s", "prompt": "x", "max_tokens": -1}' % MODEL.encode(), 400),
    ("POST", "/v1/completions", b'{"model": "%s", "prompt": "x", "max_tokens": 9000}' % MODEL.encode(), 400),
    ("POST", "/v1/completions", b'{"model": "%s", "prompt": "%s"}' % (MODEL.encode(), b"word " * 9000), 400),
    ("POST", "/v1/completions", b" " * (16 * 1024**2 + 1), 413),
    ("POST", "/v1/chat/completions", b'{"model": "%s", "messages": []}' % MODEL.encode(), 400),
    ("POST", "/v1/chat/completions", b'{"model": "%s", "messages": %s' % (MODEL.encode(), b"[" * 100_000), 400),
    ("GET", "/v1/completions", b"", 405),
    ("DELETE", "/v1/models", b"", 405),
    ("GET", "/v1/nothing", b"", 404),
    ("GET", "/nothing", b"", 404),
    ("POST", "/v1/moderations", b"{}", 404),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), BAD_REQUESTS)
def test_every_error_has_openais_shape(rig: GatewayRig, method: str, path: str, body: bytes, status: int) -> None:
    response = rig.http.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"]


def test_nothing_is_disturbed_by_bad_requests(rig: GatewayRig) -> None:
    for method, path, body, _ in BAD_REQUESTS:
        rig.http.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert rig.complete().status_code == 200


def test_metrics_parse_and_count(rig: GatewayRig) -> None:
    before = rig.metric("slackwater_http_requests_total", route="/v1/completions", status="200")
    tokens = rig.metric("slackwater_output_tokens_total")
    rig.complete(max_tokens=9, ignore_eos=True)
    assert rig.metric("slackwater_http_requests_total", route="/v1/completions", status="200") == before + 1
    assert rig.metric("slackwater_output_tokens_total") == tokens + 9
    families = {family.name for family in text_string_to_metric_families(rig.http.get("/metrics").text)}
    assert {"slackwater_ttft_seconds", "slackwater_tbt_seconds", "slackwater_executor_online_running"} <= families


def test_health_and_readiness(rig: GatewayRig) -> None:
    assert rig.http.get("/health").json() == {"status": "ok"}
    assert rig.http.get("/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize"])
def test_of_a_text_that_is_far_too_long_only_a_beginning_is_read(rig: GatewayRig, path: str) -> None:
    """Whole it would take gigabytes: some 300 bytes for each of its tokens."""
    text = "x1!?" * 4_000_000
    field = {"/v1/chat/completions": "messages", "/v1/embeddings": "input"}.get(path, "prompt")
    value = [{"role": "user", "content": text}] if field == "messages" else text
    before = rig.resident_bytes("gateway")
    response = rig.http.post(path, json={"model": MODEL, field: value})
    assert rig.resident_bytes("gateway") - before < 500 * 1024**2
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert error["message"].startswith("this model's maximum context length is")
    assert f"{field} has more than" in error["message"]
