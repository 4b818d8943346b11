"""Executors, the bus and the gateway itself go away under live streams: real processes, real signals."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from services.gateway.live.tracker import MAX_CRASHES
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

NUM_TOKENS = 100
SLOW = ("--sim-time-scale", "1.0")  # about 10 ms a token, so that a stream lasts


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path) as made:
        made.start_gateway()
        yield made


class Stream:
    """One streamed completion, read in a thread."""

    def __init__(self, rig: GatewayRig, pool: ThreadPoolExecutor, **fields: Any) -> None:
        self.body = {"model": MODEL, "prompt": "Once", "max_tokens": NUM_TOKENS, "seed": 3, "ignore_eos": True}
        self.body |= {"stream": True} | fields
        self.events: list[dict[str, Any]] = []
        self._url = f"{rig.url}/v1/completions"
        self._reading: Future[str] = pool.submit(self._read)

    def wait_for_events(self, number: int) -> None:
        wait_until(lambda: len(self.events) >= number or self._reading.done(), "no tokens come")
        assert not self._reading.done(), self.events[-1:]

    def text(self) -> str:
        """All of it, after the end; anything but a good end fails."""
        assert self._reading.result(120) == "data: [DONE]", self.events[-1:]
        return "".join(event["choices"][0]["text"] for event in self.events)

    def offsets(self) -> list[int]:
        """Of the tokens that came with logprobs."""
        logprobs = [event["choices"][0]["logprobs"] or {"text_offset": []} for event in self.events]
        return [offset for each in logprobs for offset in each["text_offset"]]

    def error(self) -> dict[str, Any]:
        self._reading.result(120)
        found: dict[str, Any] = self.events[-1]["error"]
        return found

    def _read(self) -> str:
        last = ""
        with httpx.stream("POST", self._url, json=self.body, timeout=120) as response:
            for line in response.iter_lines():
                last = line or last
                if line.startswith("data: {"):
                    self.events.append(json.loads(line[6:]))
        return last


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def one_at_each_of_two(rig: GatewayRig, pool: ThreadPoolExecutor) -> list[Stream]:
    """Under way."""
    for executor_id in ("executor-0", "executor-1"):
        rig.start_executor(executor_id, *SLOW)
    wait_until(lambda: len(executors(rig)) == 2, rig.logs)
    streams = [Stream(rig, pool, seed=seed) for seed in range(2)]
    for stream in streams:
        stream.wait_for_events(20)
    return streams


def undisturbed(rig: GatewayRig, stream: Stream) -> str:
    text: str = undisturbed_choice(rig, stream)["text"]
    return text


def undisturbed_choice(rig: GatewayRig, stream: Stream) -> dict[str, Any]:
    choice: dict[str, Any] = rig.http.post("/v1/completions", json=stream.body | {"stream": False}).json()["choices"][0]
    return choice


def test_streams_of_a_killed_executor_go_on_at_another(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    for executor_id in ("executor-0", "executor-1"):
        rig.start_executor(executor_id, *SLOW)
    wait_until(lambda: len(executors(rig)) == 2, rig.logs)
    streams = [Stream(rig, pool, seed=seed, logprobs=1) for seed in range(4)]
    for stream in streams:
        stream.wait_for_events(20)
    rig.stop("executor-0", signal.SIGKILL)
    texts = [stream.text() for stream in streams]
    whole = list(pool.map(lambda stream: undisturbed_choice(rig, stream), streams))
    assert texts == [choice["text"] for choice in whole]
    assert [stream.offsets() for stream in streams] == [choice["logprobs"]["text_offset"] for choice in whole]
    assert rig.metric("slackwater_resumed_requests_total") == 2
    assert executors(rig) == {"executor-1"}


def test_a_prompt_is_scored_anew_where_its_executor_was_killed(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    """In the middle of it, online and as flex: no score is lost, and none comes twice."""
    preset = ("--preset", "sarathi++")
    rig.start_offline_queue(*preset)
    rig.start_executor("executor-0", *preset, "--sim-time-scale", "3", "--max-num-batched-tokens", "32")
    rig.wait_ready()
    wait_until(lambda: rig.complete(max_tokens=1, service_tier="flex").status_code == 200, rig.logs)
    stream = Stream(rig, pool, max_tokens=400)
    stream.wait_for_events(3)
    body = {"prompt": [7] * 2000, "max_tokens": 1, "echo": True, "logprobs": 1}
    found = [pool.submit(rig.complete, **body, service_tier=tier) for tier in ("default", "flex")]
    stream.wait_for_events(len(stream.events) + 10)  # of 64 steps and more
    assert not [each.result().text for each in found if each.done()]
    rig.stop("executor-0", signal.SIGKILL)
    rig.start_executor("executor-0", *preset, "--sim-time-scale", "0.01")
    for each in found:
        (choice,) = each.result().json()["choices"]
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {2001}
        assert logprobs["token_logprobs"].count(None) == 1
    assert stream.text()


def test_a_stream_goes_on_at_its_restarted_executor(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    rig.start_executor("executor-0", *SLOW)
    rig.wait_ready()
    stream = Stream(rig, pool)
    stream.wait_for_events(20)
    rig.stop("executor-0", signal.SIGKILL)
    rig.start_executor("executor-0", *SLOW)
    assert stream.text() == undisturbed(rig, stream)
    assert rig.metric("slackwater_resumed_requests_total") == 1


def test_an_executor_that_signs_off_hands_its_streams_over(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    streams = one_at_each_of_two(rig, pool)
    rig.stop("executor-0", signal.SIGTERM)
    assert [stream.text() for stream in streams] == [undisturbed(rig, stream) for stream in streams]


def test_metrics_tell_of_executors_that_are_silent_and_not_of_those_that_signed_off(rig: GatewayRig) -> None:
    for executor_id in ("executor-0", "executor-1", "executor-2"):
        rig.start_executor(executor_id)
    wait_until(lambda: list(up(rig).values()) == [1, 1, 1], rig.logs)
    rig.stop("executor-0", signal.SIGKILL)
    rig.stop("executor-1", signal.SIGTERM)
    wait_until(lambda: up(rig) == {"executor-0": 0, "executor-2": 1}, rig.logs)
    rig.start_executor("executor-0")
    wait_until(lambda: up(rig) == {"executor-0": 1, "executor-2": 1}, rig.logs)


def up(rig: GatewayRig) -> dict[str, float]:
    """By executor."""
    lines = rig.http.get("/metrics").text.splitlines()
    told = [line for line in lines if line.startswith("slackwater_executor_up{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in told}


def test_a_silent_executor_is_left_and_what_it_still_sends_is_ignored(
    rig: GatewayRig, pool: ThreadPoolExecutor
) -> None:
    streams = one_at_each_of_two(rig, pool)
    rig.signal("executor-0", signal.SIGSTOP)
    wait_until(lambda: rig.metric("slackwater_resumed_requests_total") == 1, rig.logs)
    rig.signal("executor-0", signal.SIGCONT)
    assert [stream.text() for stream in streams] == [undisturbed(rig, stream) for stream in streams]
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total", executor_id="executor-0") == 1, rig.logs)


def test_streams_outlive_the_bus(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    rig.start_executor("executor-0", *SLOW)
    rig.wait_ready()
    stream = Stream(rig, pool)
    stream.wait_for_events(20)
    rig.stop("nats", signal.SIGKILL)
    wait_until(lambda: rig.http.get("/ready").status_code == 503, rig.logs)
    rig.start_nats()
    assert stream.text() == undisturbed(rig, stream)


def test_without_an_executor_clients_are_told_to_come_back(rig: GatewayRig) -> None:
    ready = rig.http.get("/ready")
    assert (ready.status_code, "no executor" in ready.json()["reason"]) == (503, True)
    response = rig.complete()
    assert (response.status_code, response.json()["error"]["type"]) == (503, "service_unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert rig.http.get("/health").status_code == 200


def test_a_request_waits_for_an_executor_that_is_about_to_come(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    waiting = pool.submit(rig.complete)
    rig.start_executor("executor-0")
    assert waiting.result(60).status_code == 200


def test_a_stopping_gateway_lets_its_streams_finish(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    rig.start_executor("executor-0", *SLOW)
    rig.wait_ready()
    stream = Stream(rig, pool)
    expected = undisturbed(rig, stream)
    stopped = Stream(rig, pool, prompt="Once")
    stopped.wait_for_events(5)
    rig.signal("gateway", signal.SIGTERM)
    assert stopped.text() == expected
    assert rig.wait("gateway") == 0


def test_a_stopping_gateway_ends_answers_that_take_too_long_with_an_error(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_gateway("--drain-s", "0")
        rig.start_executor("executor-0", *SLOW)
        rig.wait_ready()
        stream = Stream(rig, pool, max_tokens=8000)
        whole = pool.submit(rig.complete, max_tokens=8000, ignore_eos=True)
        long: dict[str, Any] = {"model": MODEL, "stream": True, "extra_body": {"ignore_eos": True}}
        chat = rig.openai.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], **long)
        response = rig.openai.responses.create(input="Hi", **long)
        stream.wait_for_events(5)
        wait_until(lambda: rig.metric("slackwater_live_requests") == 4, rig.logs)
        rig.signal("gateway", signal.SIGTERM)
        assert "shutting down" in stream.error()["message"]
        assert whole.result(60).status_code == 500 and "shutting down" in whole.result().json()["error"]["message"]
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chat)
        assert [event.type for event in response][-1] == "response.failed"
        assert rig.wait("gateway") == 0


def test_a_stopping_gateway_ends_what_waits_for_the_bus_with_an_error(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_gateway("--drain-s", "0")
        wait_until(lambda: rig.http.get("/v1/files").status_code == 200, rig.logs)
        rig.pause("nats")
        upload = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}
        answer = pool.submit(rig.http.post, "/v1/files", **upload)
        wait_until(lambda: rig.metric("slackwater_http_answering") == 2, rig.logs)  # that, and the metrics
        rig.signal("gateway", signal.SIGTERM)
        assert answer.result(60).status_code == 503 and "shutting down" in answer.result().json()["error"]["message"]
        assert rig.wait("gateway") == 0
        assert not [event for event in rig.log_events("gateway") if "exception" in event]


def executors(rig: GatewayRig) -> set[str]:
    """Alive, as the gateway sees it."""
    lines = [line for line in rig.http.get("/metrics").text.splitlines() if "executor_online_running{" in line]
    return {line.split('executor_id="')[1].split('"')[0] for line in lines}


def test_nothing_is_computed_for_nobody_after_the_bus_was_away(rig: GatewayRig, pool: ThreadPoolExecutor) -> None:
    """The executor is back on the bus after the gateway, whose aborts it misses: of the stream that goes on it would
    run two copies, and one of the stream that nobody reads any more."""
    rig.start_executor("executor-0", *SLOW)
    rig.wait_ready()
    staying = Stream(rig, pool, max_tokens=8000)
    staying.wait_for_events(5)
    with rig.http.stream("POST", "/v1/completions", json=staying.body) as leaving:
        next(leaving.iter_lines())
        rig.signal("executor-0", signal.SIGSTOP)
        rig.stop("nats", signal.SIGKILL)
    wait_until(lambda: rig.metric("slackwater_live_requests") == 1, rig.logs)
    rig.start_nats()
    wait_until(lambda: has_logged(rig, "gateway", "bus connection restored"), rig.logs)
    rig.signal("executor-0", signal.SIGCONT)
    wait_until(lambda: rig.metric("slackwater_resumed_requests_total") == 1, rig.logs)
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total") == 2, rig.logs)
    assert rig.metric("slackwater_executor_online_running") == 1
    rig.stop("gateway", signal.SIGKILL)


POISONED_EXECUTOR = """
import os
import sys
from pathlib import Path

from services.executor.__main__ import serve
from services.executor.engines.factory import load_engine
from services.executor.engines.sim import SimEngine
from services.executor.settings import ExecutorSettings
from shared.settings import config
from shared.text.tokenizer import Tokenizer


class PoisonedEngine(SimEngine):
    def execute(self, batch):
        if any(sequence.token_ids[:3] == [7, 7, 7] for sequence in batch.sequences):
            os.abort()
        return super().execute(batch)


if __name__ == "__main__":
    settings = config.load(ExecutorSettings, "executor")
    engine = load_engine(settings)
    engine.__class__ = PoisonedEngine
    sys.exit(serve(settings, engine, Tokenizer.from_folder(Path(settings.model_path))))
"""


@pytest.mark.slow
def test_a_request_that_kills_executors_ends_and_those_beside_it_go_on(
    rig: GatewayRig, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    script = tmp_path / "poisoned_executor.py"
    script.write_text(POISONED_EXECUTOR)
    rig.start_own_executor(script, *SLOW)
    rig.wait_ready()
    streams = [Stream(rig, pool, seed=seed, max_tokens=300) for seed in range(2)]
    for stream in streams:
        stream.wait_for_events(5)
    poison = pool.submit(rig.complete, prompt=[7, 7, 7])
    for _ in range(MAX_CRASHES):
        assert rig.wait("executor-0") != 0
        rig.start_own_executor(script, *SLOW)
    assert poison.result(60).status_code == 500
    texts = [stream.text() for stream in streams]
    assert texts == list(pool.map(lambda stream: undisturbed(rig, stream), streams))


def has_logged(rig: GatewayRig, name: str, event: str) -> bool:
    return any(logged["event"] == event for logged in rig.log_events(name))
