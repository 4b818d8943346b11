"""Service tiers over real HTTP, bus, offline-queue and executor (sim engine), with the official client."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from shared.bus import Bus
from shared.protocol import subjects
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

MESSAGES: Any = [{"role": "user", "content": "Once upon a time"}]
ENDLESS: Any = {"ignore_eos": True}
PRESET = ("--preset", "sarathi++")


def make_stack(folder: Path, *queue_options: str, time_scale: str = "0.1") -> GatewayRig:
    made = GatewayRig(folder)
    made.start_offline_queue(*PRESET, *queue_options)
    made.start_executor("executor-0", *PRESET, "--sim-time-scale", time_scale)
    made.start_gateway()
    made.wait_ready()
    return made


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with make_stack(tmp_path_factory.mktemp("stack"), "--max-flex-requests", "2") as made:
        wait_until(lambda: chat(made, service_tier="flex", max_tokens=1) is not None, made.logs)
        yield made


def chat(rig: GatewayRig, **fields: Any) -> ChatCompletion | None:
    """None where there is no room."""
    try:
        answer: ChatCompletion = rig.openai.chat.completions.create(model=MODEL, messages=MESSAGES, seed=5, **fields)
        return answer
    except openai.RateLimitError:
        return None


def test_every_tier_is_answered_with_the_one_that_served_it(rig: GatewayRig) -> None:
    online: Any = (None, "auto", "default", "fast", "priority", "scale")
    tiers: Any = dict.fromkeys(online, "default") | {"flex": "flex"}
    fields: Any = {"max_tokens": 12}
    answers = {tier: chat(rig, service_tier=tier, **fields) for tier in tiers}
    assert {tier: answer.service_tier for tier, answer in answers.items() if answer} == tiers
    assert len({answer.choices[0].message.content for answer in answers.values() if answer}) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        chat(rig, service_tier="gold")
    assert refused.value.param == "service_tier"
    assert "'gold'; use one of auto, default, fast, flex, priority, scale" in refused.value.message


async def test_flex_is_offline_work_and_leaves_nothing_stored(rig: GatewayRig) -> None:
    online = rig.metric("slackwater_finished_requests_total")
    answer = chat(rig, service_tier="flex", max_tokens=20, extra_body=ENDLESS)
    assert answer is not None and answer.usage is not None and answer.usage.completion_tokens == 20
    wait_until(lambda: rig.metric("slackwater_executor_finished_offline_total") == num_finished(rig), "not offline")
    assert rig.metric("slackwater_finished_requests_total") == online
    assert rig.metric("slackwater_flex_requests") == 0
    bus = await Bus.connect(rig.nats_url, "test")
    for stream in (subjects.REQUESTS_STREAM, subjects.RESULTS_STREAM):
        assert (await bus.size(stream)).messages == 0
    await bus.close()


@pytest.mark.parametrize("tier", ["flex", "default"])
def test_streams_tell_their_tier_and_join_to_the_whole_text(rig: GatewayRig, tier: Any) -> None:
    whole = chat(rig, service_tier=tier, max_tokens=40)
    options: Any = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 40, "service_tier": tier}
    chunks = list(rig.openai.chat.completions.create(**options, stream=True))
    assert whole is not None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert {chunk.service_tier for chunk in chunks} == {tier}
    assert len(chunks) > 10


async def test_the_async_client_gets_responses_and_texts_as_flex(rig: GatewayRig) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=2) as client:
        body: Any = {"model": MODEL, "temperature": 0, "extra_body": {"seed": 2}}
        answer = await client.responses.create(input="Hello", service_tier="flex", **body)
        online = await client.responses.create(input="Hello", **body)
        assert (answer.service_tier, online.service_tier) == ("flex", "default")
        assert answer.output_text == online.output_text
    assert rig.complete(service_tier="flex").json()["service_tier"] == "flex"


def test_the_url_of_a_response_names_its_tier(rig: GatewayRig) -> None:
    body = {"model": MODEL, "input": "Hello", "max_output_tokens": 4}
    before = num_finished(rig)
    tiers = {"flex": "flex", "priority": "default"}
    for tier, served in tiers.items():
        answer = rig.http.post(f"/v1/responses?service_tier={tier}", json=body)
        assert answer.json()["service_tier"] == served
        stored = rig.http.get(f"/v1/responses/{answer.json()['id']}")
        assert stored.json()["service_tier"] == served
    assert num_finished(rig) == before + 1
    streamed = rig.http.post("/v1/responses?service_tier=flex", json=body | {"stream": True}).text
    assert '"service_tier":"flex"' in streamed and '"service_tier":"default"' not in streamed
    refused = rig.http.post("/v1/responses?service_tier=nonsense", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "service_tier")


def test_several_choices_are_the_same_as_online_and_a_request_each(rig: GatewayRig) -> None:
    before = num_finished(rig)
    answers = [chat(rig, service_tier=tier, n=2, max_tokens=12) for tier in ("flex", "default")]
    texts = [[choice.message.content for choice in answer.choices] for answer in answers if answer is not None]
    assert len(texts) == 2 and texts[0] == texts[1] and texts[0][0] != texts[0][1]
    assert num_finished(rig) == before + 2


def test_beyond_the_limit_the_client_is_told_to_come_back(rig: GatewayRig) -> None:
    """A stream of two choices takes both places."""
    options: Any = {"model": MODEL, "messages": MESSAGES, "service_tier": "flex", "extra_body": ENDLESS}
    with rig.openai.chat.completions.create(**options, stream=True, user="one", n=2) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            rig.openai.chat.completions.create(**options, user="one")
        assert (refused.value.code, refused.value.type) == ("resource_unavailable", "resource_unavailable")
        assert int(refused.value.response.headers["retry-after"]) > 0
        assert rig.metric("slackwater_refused_requests_total", reason="flex_requests") >= 1
    wait_until(lambda: chat(rig, service_tier="flex", max_tokens=2) is not None, "the place stays taken")


def test_choices_are_taken_together_or_not_at_all(rig: GatewayRig) -> None:
    """The limit is two, and twice of it for a client that has nothing here."""
    finished = num_finished(rig)
    answer = chat(rig, service_tier="flex", n=4, max_tokens=2)
    assert answer is not None and len(answer.choices) == 4
    assert num_finished(rig) == finished + 4
    with pytest.raises(openai.BadRequestError, match="5 choices are more than can be under way, 4") as refused:
        chat(rig, service_tier="flex", n=5, max_tokens=2)
    assert refused.value.param == "service_tier"
    assert num_finished(rig) == finished + 4 and rig.metric("slackwater_flex_requests") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_on_the_executor(rig: GatewayRig, stream: bool) -> None:
    wait_until(lambda: rig.metric("slackwater_executor_offline_running") == 0, "of tests before")
    aborted, aborted_there = num_aborted(rig), rig.metric("slackwater_executor_aborted_total")
    asked: Any = {"model": MODEL, "messages": MESSAGES, "service_tier": "flex"}
    if stream:
        with rig.openai.chat.completions.create(**asked, extra_body=ENDLESS, stream=True) as chunks:
            next(iter(chunks))
    else:
        with closing(HTTPConnection("127.0.0.1", rig.port)) as client:
            client.request(
                "POST", "/v1/chat/completions", json.dumps(asked | ENDLESS), {"Content-Type": "application/json"}
            )
            wait_until(lambda: rig.metric("slackwater_executor_offline_running") == 1, rig.logs)
    wait_until(lambda: num_aborted(rig) == aborted + 1, "the gateway holds it still")
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total") > aborted_there, "the executor runs it still")
    wait_until(lambda: rig.metric("slackwater_executor_offline_running") == 0, "the executor runs it still")
    assert rig.metric("slackwater_flex_requests") == 0


@pytest.mark.slow
def test_it_outlives_whatever_is_killed(tmp_path: Path) -> None:
    """A stream of 250 tokens for each of the two, killed while the stream runs."""
    with make_stack(tmp_path, time_scale="1.0") as rig, ThreadPoolExecutor(4) as pool:
        until_taken(rig)
        expected = read(rig, [])
        executor = ("executor-0", *PRESET, "--sim-time-scale", "1.0")
        kills = {
            "offline-queue": lambda: rig.start_offline_queue(*PRESET),
            "executor-0": lambda: rig.start_executor(*executor),
        }
        for victim, restart in kills.items():
            until_taken(rig)  # the one before may have ended sooner than its victim was there again
            pieces: list[str] = []
            reading = pool.submit(read, rig, pieces)
            wait_until(lambda: len(pieces) > 20 or reading.done(), rig.logs)  # noqa: B023
            rig.stop(victim, signal.SIGKILL)
            restart()
            assert reading.result(60) == expected, victim
        assert rig.metric("slackwater_flex_resumed_requests_total") >= 1  # the executor's
        assert rig.metric("slackwater_flex_finished_requests_total", reason="length") == 6
        until_taken(rig)
        check_choices(rig)


def until_taken(rig: GatewayRig) -> None:
    wait_until(lambda: chat(rig, service_tier="flex", max_tokens=1) is not None, rig.logs)


def check_choices(rig: GatewayRig) -> None:
    """Of a flex request: those that an online one has."""
    flex, online = (chat(rig, service_tier=tier, n=3, max_tokens=9) for tier in ("flex", "default"))
    assert flex is not None and online is not None and len(flex.choices) == 3
    assert flex.choices == online.choices


def num_finished(rig: GatewayRig) -> float:
    """Flex requests that were answered whole."""
    return sum(rig.metric("slackwater_flex_finished_requests_total", reason=each) for each in ("stop", "length"))


def num_aborted(rig: GatewayRig) -> float:
    """Flex requests whose clients left; in this stack nothing else is aborted."""
    return rig.metric("slackwater_flex_finished_requests_total", reason="abort")


def read(rig: GatewayRig, pieces: list[str]) -> str:
    options: Any = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 250, "service_tier": "flex"}
    for chunk in rig.openai.chat.completions.create(**options, stream=True, extra_body=ENDLESS):
        pieces.append(chunk.choices[0].delta.content or "")
    return "".join(pieces)
