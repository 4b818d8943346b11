"""Embeddings of a prompt and scores of its tokens over real HTTP, bus, offline-queue and executor (sim engine), by the
official client."""

import base64
import json
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.openai.embeddings.requests import EMBEDDINGS, MAX_INPUTS
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

PRESET = ("--preset", "sarathi++")
TEXTS = ["Once upon a time 😀 there was", "a cat", "Once"]
TOKENS = [Tokenizer.from_folder(model_folder()).encode(text) for text in TEXTS]
TOLERANCE = 1e-6
PROMPT, PROMPT_IDS = TEXTS[0], TOKENS[0]
BEGUN_IDS = Tokenizer.from_folder(model_folder()).encode("\u2028")[:1]
OPTIONS: Any = {"model": MODEL, "max_tokens": 6, "seed": 1, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.01")
        made.start_offline_queue(*PRESET)
        made.start_gateway()
        made.wait_ready()
        yield made


def post(rig: GatewayRig, path: str = EMBEDDINGS, **fields: Any) -> Any:
    return rig.http.post(path, json={"model": MODEL, "input": TEXTS[0]} | fields)


def vectors(answer: Any) -> list[list[float]]:
    """Of an answer's JSON, in the order of their inputs."""
    assert answer["object"] == "list" and answer["model"] == MODEL
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    return [each["embedding"] for each in answer["data"]]


def batch_of(rig: GatewayRig, bodies: list[dict[str, Any]]) -> str:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": EMBEDDINGS, "body": {"model": MODEL} | body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    uploaded = rig.openai.files.create(file=("in.jsonl", content), purpose="batch")
    return rig.openai.batches.create(input_file_id=uploaded.id, endpoint=EMBEDDINGS, completion_window="24h").id


def ended(rig: GatewayRig, batch_id: str) -> Any:
    ends = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status in ends, rig.logs)
    return rig.openai.batches.retrieve(batch_id)


def lines_of(rig: GatewayRig, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(file_id).text.splitlines()]
    return {line["custom_id"]: line["response"] for line in lines}


@pytest.mark.parametrize("client_type", [openai.OpenAI, openai.AsyncOpenAI])
async def test_the_official_client_gets_the_same_in_both_encodings(rig: GatewayRig, client_type: Any) -> None:
    """It asks for base64 by itself, and decodes it."""
    made: Any = client_type(base_url=f"{rig.url}/v1", api_key="none", max_retries=0, timeout=60)
    answers = []
    for options in ({}, {"encoding_format": "float"}):
        answer = made.embeddings.create(model=MODEL, input=TEXTS, **options)
        answers.append(await answer if client_type is openai.AsyncOpenAI else answer)
    await made.close() if client_type is openai.AsyncOpenAI else made.close()
    packed, plain = answers
    assert (plain.object, plain.model, [each.index for each in plain.data]) == ("list", MODEL, [0, 1, 2])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=TOLERANCE)
        assert sum(value * value for value in one.embedding) == pytest.approx(1.0, abs=1e-5)
    num_tokens = sum(map(len, TOKENS))
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens) == (num_tokens, num_tokens)
    raw = vectors(post(rig, encoding_format="base64").json())[0]
    assert isinstance(raw, str)
    values = base64.b64decode(raw)
    assert struct.unpack(f"<{len(values) // 4}f", values) == pytest.approx(plain.data[0].embedding, abs=TOLERANCE)


def test_texts_and_token_ids_alone_and_in_lists_are_the_same(rig: GatewayRig) -> None:
    alone = [vectors(post(rig, input=text).json())[0] for text in TEXTS]
    assert len({tuple(each) for each in alone}) == len(TEXTS)
    assert vectors(post(rig, input=TEXTS).json()) == alone
    assert vectors(post(rig, input=TOKENS).json()) == alone
    assert vectors(post(rig, input=TOKENS[0]).json()) == alone[:1]


def test_as_many_as_clients_send_at_a_time_are_answered_in_their_order(rig: GatewayRig) -> None:
    inputs = [[5, 6, number] for number in range(3, 303)]
    answer = post(rig, input=inputs).json()
    assert answer["usage"]["prompt_tokens"] == 3 * len(inputs)
    found = vectors(answer)
    assert len({tuple(each) for each in found}) == len(inputs)
    assert found[7] == vectors(post(rig, input=inputs[7]).json())[0]


@pytest.mark.parametrize(
    ("path", "fields"), [(EMBEDDINGS, {"service_tier": "flex"}), (f"{EMBEDDINGS}?service_tier=flex", {})]
)
def test_flex_is_the_same_as_offline_work(rig: GatewayRig, path: str, fields: dict[str, Any]) -> None:
    before = rig.metric("slackwater_flex_finished_requests_total")
    online = vectors(post(rig, input=TEXTS).json())
    assert vectors(post(rig, path, input=TEXTS, **fields).json()) == online
    assert rig.metric("slackwater_flex_finished_requests_total") == before + len(TEXTS)


def test_a_batch_is_the_same_as_online(rig: GatewayRig) -> None:
    """A line has one input; what is wrong with one fails alone."""
    bodies: list[dict[str, Any]] = [
        *({"input": text} for text in TEXTS),
        {"input": [TOKENS[1]], "encoding_format": "base64", "user": "me"},
        {"input": TEXTS},
        {"input": "a", "dimensions": 3},
    ]
    batch = ended(rig, batch_of(rig, bodies))
    assert (batch.status, batch.endpoint, batch.request_counts.completed) == ("completed", EMBEDDINGS, 4)
    usage = batch.usage.model_dump() if batch.usage else {}
    num_tokens = sum(map(len, TOKENS)) + len(TOKENS[1])
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (num_tokens, 0, num_tokens)
    done, failed = lines_of(rig, batch.output_file_id), lines_of(rig, batch.error_file_id)
    assert sorted(done) == ["0", "1", "2", "3"]
    for number, body in enumerate(bodies[:4]):
        response, online = done[str(number)], post(rig, **body).json()
        assert response["status_code"] == 200
        assert vectors(response["body"]) == vectors(online)
        assert response["body"]["usage"]["prompt_tokens"] == online["usage"]["prompt_tokens"]
    assert "write a line for each" in failed["4"]["body"]["error"]["message"]
    assert failed["5"]["body"]["error"]["param"] == "dimensions"


def test_inputs_that_begin_alike_are_computed_once(rig: GatewayRig) -> None:
    stem = [7 + 3 * number for number in range(400)]
    usages = [post(rig, input=[*stem, number]).json()["usage"] for number in range(3)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 400, 400]
    assert {usage["total_tokens"] for usage in usages} == {401}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "input is empty"),
        ({"input": []}, "input", "input is empty"),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": None}, "input", "input is missing"),
        ({"input": [10**6]}, "input[0]", "outside the vocabulary"),
        ({"input": [[1], [2.5]]}, "input[1][0]", "not a token id"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", f"a request takes {MAX_INPUTS} at most"),
        ({"input": [5] * 8192}, "input", "this server takes at most 8191"),
        ({"dimensions": 3}, "dimensions", "not trained for shorter"),
        ({"dimensions": 10**6}, "dimensions", "the model's embeddings have 576"),
        ({"dimensions": 0}, "dimensions", ">= 1"),
        ({"encoding_format": "int8"}, "encoding_format", "int8"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"normalize": False}, "normalize", "set it to true"),
        ({"temperature": 1}, "temperature", "not supported"),
        ({"stream": True}, "stream", "not supported"),
        ({"model": "another"}, "model", "does not exist"),
        ({"service_tier": "gold"}, "service_tier", "gold"),
    ],
)
def test_what_is_wrong_is_named(rig: GatewayRig, fields: dict[str, Any], param: str, said: str) -> None:
    refused = post(rig, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (404 if param == "model" else 400, param), error
    assert said in error["message"]


def test_what_asks_for_nothing_is_accepted(rig: GatewayRig) -> None:
    plain = vectors(post(rig).json())
    fields = {"dimensions": 576, "normalize": True, "priority": 3, "add_special_tokens": True, "encoding_format": None}
    assert vectors(post(rig, **fields).json()) == plain


def test_a_request_and_a_batch_outlive_their_executor(rig: GatewayRig, tmp_path: Path) -> None:
    """Killed while it computes; the next one computes them anew."""
    expected = vectors(post(rig).json())
    with GatewayRig(tmp_path) as made, ThreadPoolExecutor(1) as pool:
        made.start_offline_queue(*PRESET)
        made.start_executor("slow", *PRESET, "--sim-time-scale", "10000")
        made.start_gateway()
        made.wait_ready()
        batch_id = batch_of(made, [{"input": TEXTS[0]}])
        wait_until(lambda: made.metric("slackwater_executor_offline_running") == 1, made.logs)
        online = pool.submit(post, made)
        wait_until(lambda: held_online(made) == 1, made.logs)
        made.start_executor("quick", *PRESET, "--sim-time-scale", "0.01")
        made.stop("slow", signal.SIGKILL)
        assert vectors(online.result(60).json()) == expected
        batch = ended(made, batch_id)
        assert batch.status == "completed"
        assert vectors(lines_of(made, batch.output_file_id)["0"]["body"]) == expected


def held_online(rig: GatewayRig) -> float:
    names = ("slackwater_executor_online_running", "slackwater_executor_online_waiting")
    return sum(rig.metric(name) for name in names)


@pytest.mark.parametrize(("tier", "kind"), [("default", ""), ("flex", "flex_")])
def test_an_embedding_is_none_of_the_answers_that_were_cut(rig: GatewayRig, tier: str, kind: str) -> None:
    names = (f"slackwater_{kind}finished_requests_total", "reason"), ("vllm:request_success_total", "finished_reason")

    def counted() -> list[float]:
        return [rig.metric(name, **{label: reason}) for name, label in names for reason in ("stop", "length")]

    before = counted()
    assert post(rig, input=TEXTS, service_tier=tier).status_code == 200
    assert [after - first for after, first in zip(counted(), before, strict=True)] == [3, 0, 3, 0]


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT_IDS]])
def test_an_echo_has_the_prompts_tokens_before_those_of_the_output(rig: GatewayRig, prompt: Any) -> None:
    plain = rig.openai.completions.create(prompt=prompt, logprobs=2, **OPTIONS).choices[0]
    whole = rig.openai.completions.create(prompt=prompt, logprobs=2, echo=True, **OPTIONS).choices[0]
    assert whole.text == PROMPT + plain.text
    found, own = whole.logprobs, plain.logprobs
    assert found is not None and own is not None and found.tokens and own.tokens
    assert found.tokens[len(PROMPT_IDS) :] == own.tokens and len(own.tokens) == 6
    assert found.token_logprobs is not None and own.token_logprobs is not None
    assert found.token_logprobs[0] is None and None not in found.token_logprobs[1:]
    assert found.token_logprobs[len(PROMPT_IDS) :] == own.token_logprobs
    assert found.top_logprobs is not None and found.top_logprobs[0] is None
    for name, logprob, top in zip(found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
        assert top[name] == logprob and len(top) in (2, 3)
    assert found.text_offset is not None and found.text_offset == sorted(found.text_offset)
    for name, offset in zip(found.tokens, found.text_offset, strict=True):
        assert name.startswith("bytes:") or whole.text.startswith(name, offset)


def test_a_prompt_alone_is_scored_and_nothing_is_generated(rig: GatewayRig) -> None:
    made = rig.openai.completions.create(prompt=PROMPT, logprobs=0, echo=True, **OPTIONS | {"max_tokens": 0})
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert len(choice.logprobs.tokens) == len(PROMPT_IDS)
    assert made.usage is not None and (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(PROMPT_IDS), 0)
    bare = rig.openai.completions.create(prompt=PROMPT, echo=True, **OPTIONS | {"max_tokens": 0}).choices[0]
    assert (bare.text, bare.logprobs) == (PROMPT, None)


@pytest.mark.parametrize("token_id", [500, 0, *Tokenizer.from_folder(model_folder()).eos_token_ids])
def test_what_an_evaluation_scores_does_not_depend_on_the_token_that_it_leaves_out(
    rig: GatewayRig, token_id: int
) -> None:
    """lm_eval's local-completions asks for one token, and takes all but the last one's scores from the context on."""
    asked = {"model": MODEL, "prompt": PROMPT_IDS, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    choice = rig.openai.completions.create(**asked, extra_body={"allowed_token_ids": [token_id]}).choices[0]
    alone = rig.openai.completions.create(**asked | {"max_tokens": 0}).choices[0]
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None and alone.logprobs is not None
    assert choice.logprobs.token_logprobs[:-1] == alone.logprobs.token_logprobs
    chunks = list(rig.openai.completions.create(**asked, stream=True, extra_body={"allowed_token_ids": [token_id]}))
    found = [chunk.choices[0].logprobs for chunk in chunks]
    assert [name for each in found if each for name in each.tokens or ()] == choice.logprobs.tokens


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"logprobs": 1}, {"logprobs": 1, "n": 2}, {"max_tokens": 0}])
def test_streams_with_an_echo_are_the_whole_answer(rig: GatewayRig, options: dict[str, Any]) -> None:
    asked = OPTIONS | {"prompt": PROMPT, "echo": True} | options
    whole = rig.openai.completions.create(**asked).choices
    texts, logprobs, reasons = [""] * len(whole), [list[Any]() for _ in whole], [""] * len(whole)
    for chunk in rig.openai.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or ""
        found = choice.logprobs
        if found is not None:
            entries = zip(found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True)
            logprobs[choice.index] += entries
    for choice, text, entries, reason in zip(whole, texts, logprobs, reasons, strict=True):
        assert (choice.text, choice.finish_reason) == (text, reason)
        own = choice.logprobs
        expected = own and list(
            zip(own.tokens or (), own.token_logprobs or (), own.top_logprobs or (), own.text_offset or (), strict=True)
        )
        assert entries == (expected or [])


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_answered_in_their_order(rig: GatewayRig, stream: bool) -> None:
    """As an evaluation with a batch size asks, whose texts are cut between tokens: one within a character."""
    prompts: Any = [BEGUN_IDS, PROMPT_IDS, PROMPT_IDS[:4], [9, 8, 7]]
    asked = OPTIONS | {"n": 2, "logprobs": 1, "echo": True}
    alone = [rig.openai.completions.create(prompt=[prompt], **asked) for prompt in prompts]
    expected = [choice for made in alone for choice in made.choices]
    if stream:
        chunks = rig.openai.completions.create(prompt=prompts, stream=True, **asked)
        texts, offsets = [""] * 8, [list[int]() for _ in range(8)]
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].text
            found = chunk.choices[0].logprobs
            offsets[chunk.choices[0].index] += found.text_offset if found is not None else []
        assert texts == [choice.text for choice in expected]
        assert offsets == [choice.logprobs and choice.logprobs.text_offset for choice in expected]
        return
    made = rig.openai.completions.create(prompt=prompts, **asked)
    assert [choice.index for choice in made.choices] == list(range(8))
    assert [(choice.text, choice.logprobs) for choice in made.choices] == [
        (choice.text, choice.logprobs) for choice in expected
    ]
    for field in ("prompt_tokens", "completion_tokens"):
        assert getattr(made.usage, field) == sum(getattr(each.usage, field) for each in alone)


@pytest.mark.parametrize(("fields", "num_texts"), [({}, 6), ({"seed": 3}, 2)])
def test_a_prompt_that_is_there_several_times_is_sampled_anew_without_a_seed(
    rig: GatewayRig, fields: Any, num_texts: int
) -> None:
    """As who wants many samples asks."""
    made = rig.openai.completions.create(model=MODEL, prompt=[PROMPT_IDS] * 3, n=2, max_tokens=8, **fields)
    assert len({choice.text for choice in made.choices}) == num_texts


def test_prompt_logprobs_are_as_vllm_has_them(rig: GatewayRig) -> None:
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 1}
    (choice,) = rig.complete(**body).json()["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == len(PROMPT_IDS) - 1
    for token_id, entry in zip(PROMPT_IDS[1:], others, strict=True):
        assert next(iter(entry)) == str(token_id) and len(entry) in (2, 3)
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}
        assert sorted(each["rank"] for each in entry.values())[:2] == [1, 2]
    assert "prompt_logprobs" not in rig.complete(prompt=PROMPT, echo=True, logprobs=1).json()["choices"][0]
    messages: Any = [{"role": "user", "content": "Hi"}]
    chat: Any = rig.openai.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=0, extra_body={"prompt_logprobs": 0}
    )
    assert chat.prompt_logprobs[0] is None and len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert chat.choices[0].message.content == "" and chat.choices[0].finish_reason == "length"


def test_what_the_url_asks_for_runs_as_flex(rig: GatewayRig) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, "seed": 1}
    online = rig.http.post("/v1/completions", json=body).json()
    flex = rig.http.post("/v1/completions?service_tier=flex", json=body).json()
    assert (online["service_tier"], flex["service_tier"]) == ("default", "flex")
    assert flex["choices"] == online["choices"]
    refused = rig.http.post("/v1/completions?service_tier=gold", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "service_tier"


def test_prompts_that_begin_alike_are_scored_once(rig: GatewayRig) -> None:
    """As the choices of a question: of all but the first only what is new is computed."""
    stem = [8 + 3 * number for number in range(400)]
    cached = []
    for choice in range(4):
        made = rig.openai.completions.create(prompt=[[*stem, choice]], logprobs=1, echo=True, **OPTIONS)
        assert made.usage is not None and made.usage.prompt_tokens_details is not None
        cached.append(made.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == 0 and set(cached[1:]) == {384}
