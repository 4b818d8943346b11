"""Open-loop sending against a real HTTP server: due times, stalls, failures."""

import asyncio
import time
from statistics import fmean
from typing import cast

import pytest

from loadgen.client.abilities import RequestMaker, probe
from loadgen.client.openai_client import OpenAIClient, StreamRequest, error_message
from loadgen.client.openloop import OpenLoop
from loadgen.errors import ServerError
from loadgen.report.metrics import LatencySamples
from loadgen.workload.prompts import Calibration
from loadgen.workload.traces import TraceRequest
from tests.loadgen.openai_server import OpenAIServer, letters_per_three

REQUESTS = [TraceRequest(index * 0.05, 20, 3) for index in range(20)]  # over one second


async def make(server: OpenAIServer, client: OpenAIClient) -> RequestMaker:
    return await probe(client, "tiny", None, None, "salt")


async def test_requests_leave_at_their_times(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url, 10) as client:
        loop = OpenLoop(client, await make(server, client), REQUESTS)
        start_s = time.perf_counter() + 0.1
        await loop.run(start_s)
    assert [record.due_s for record in loop.records] == [start_s + request.arrival_s for request in REQUESTS]
    for record in loop.records:
        assert record.sent_s is not None
        assert record.sent_s >= record.due_s
        assert record.ok
        assert (record.prompt_tokens, record.output_tokens) == (20, 3)
        assert record.due_s <= record.sent_s < record.token_times_s[0] <= record.token_times_s[-1]
    assert (loop.num_finished, loop.num_failed) == (20, 0)


class Counting:
    """A maker that notes the number of each request whose body it makes."""

    def __init__(self, maker: RequestMaker) -> None:
        self.made: list[int] = []
        self._maker = maker

    def online(self, request: TraceRequest, index: int) -> StreamRequest:
        self.made.append(index)
        return self._maker.online(request, index)


@pytest.mark.parametrize(("num_requests", "num_first"), [(20, 8), (5, 5)])
async def test_the_first_bodies_are_made_before_the_time_runs_and_each_once(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, num_requests: int, num_first: int
) -> None:
    monkeypatch.setattr("loadgen.client.openloop.NUM_PREPARED", 8)
    async with OpenAIClient(server.url, 10) as client:
        counting = Counting(await make(server, client))
        loop = OpenLoop(client, cast(RequestMaker, counting), REQUESTS[:num_requests])
        await loop.prepare()
        assert counting.made == list(range(num_first))
        await loop.run(time.perf_counter())
    assert counting.made == list(range(num_requests))
    sent = {tuple(body["prompt"]) for body in server.trace_bodies}
    assert len(sent) == len(server.trace_bodies) == loop.num_finished == num_requests


async def test_a_change_is_told_at_each_send_and_each_answer(server: OpenAIServer) -> None:
    told: list[tuple[int, int, int]] = []

    def note(loop: OpenLoop) -> None:
        told.append((len(loop.records), loop.num_finished, loop.num_failed))

    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        server.max_answered = 1
        for _ in range(2):  # the second of which is refused
            await OpenLoop(client, maker, REQUESTS[:1], note).run(time.perf_counter())
    assert told == [(1, 0, 0), (1, 1, 0), (1, 0, 0), (1, 1, 1)]


async def test_a_stalled_server_delays_no_send_and_hides_no_wait(server: OpenAIServer) -> None:
    """The server answers nobody until all requests have come: a closed loop would never send the second one."""
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        num_probes = len(server.bodies)
        server.gate.clear()
        loop = OpenLoop(client, maker, REQUESTS)
        start_s = time.perf_counter()
        running = asyncio.create_task(loop.run(start_s))
        await server.until(lambda: server.num_active == len(REQUESTS))
        opened_s = time.perf_counter()
        server.gate.set()
        await running
    assert server.max_active == len(REQUESTS)
    arrived_s = server.arrived_s[num_probes:]
    assert max(arrived_s) <= opened_s
    ttfts_ms = LatencySamples.of(loop.records).ttft_ms
    for request, ttft_ms in zip(REQUESTS, ttfts_ms, strict=True):
        stalled_ms = (opened_s - start_s - request.arrival_s) * 1000
        assert ttft_ms >= stalled_ms, "the wait from the due time to the stall's end belongs to the latency"
    assert ttfts_ms[0] > ttfts_ms[-1]


async def test_latency_counts_from_the_due_time_when_sends_are_late(server: OpenAIServer) -> None:
    """A run whose due times are past sends at once, and the lag is part of the latency."""
    async with OpenAIClient(server.url, 10) as client:
        loop = OpenLoop(client, await make(server, client), REQUESTS[:3])
        await loop.run(time.perf_counter() - 5)
    ttfts_ms = LatencySamples.of(loop.records).ttft_ms
    assert len(ttfts_ms) == 3 and min(ttfts_ms) > 4_800
    assert all(record.sent_s is not None and record.sent_s - record.due_s > 4.8 for record in loop.records)


async def test_refusals_are_errors_with_the_server_s_words(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        server.fail_with = 503
        loop = OpenLoop(client, maker, REQUESTS[:2])
        await loop.run(time.perf_counter())
    assert [record.error for record in loop.records] == ["503: out of order"] * 2
    assert loop.num_failed == 2


async def test_a_request_fails_after_its_timeout(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url, 0.2) as client:
        maker = await make(server, client)
        server.gate.clear()
        loop = OpenLoop(client, maker, REQUESTS[:1])
        await loop.run(time.perf_counter())
    assert loop.records[0].error == "TimeoutError: no whole answer within 0.2 s"


def test_a_proxys_page_is_told_by_its_text_in_one_line() -> None:
    page = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><hr>nginx</body>\r\n</html>\r\n"
    assert error_message(page) == "502 Bad Gateway nginx"
    assert error_message(b"upstream\nis <gone>") == "upstream is <gone>" and error_message(b"") == ""
    assert error_message(b'{"error": {"message": "no"}}') == "no" and len(error_message(b"x" * 5000)) == 300


async def test_an_error_within_a_stream_is_told_in_the_server_s_words(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        server.breaks_with = "the engine has gone"
        loop = OpenLoop(client, maker, REQUESTS[:1])
        await loop.run(time.perf_counter())
    (record,) = loop.records
    assert (record.error, record.failed, len(record.token_times_s)) == ("the engine has gone", True, 1)


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ('{"error": {"message": "the model loads"}}', "no event stream: the model loads"),
        ("<html>Sign in</html>", "no event stream: Sign in"),
        ("", "no event stream: "),
    ],
)
async def test_what_is_answered_instead_of_a_stream_is_told(server: OpenAIServer, answered: str, said: str) -> None:
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        server.answers_instead = answered
        loop = OpenLoop(client, maker, REQUESTS[:1])
        await loop.run(time.perf_counter())
    assert loop.records[0].error == said


async def test_the_first_token_of_a_model_that_thinks_is_a_thought(server: OpenAIServer) -> None:
    server.has_completions, server.thinks = False, True
    async with OpenAIClient(server.url, 10) as client:
        loop = OpenLoop(client, await make(server, client), [TraceRequest(0.0, 40, 5)])
        await loop.run(time.perf_counter())
    assert loop.records[0].ok and len(loop.records[0].token_times_s) == 5


async def test_cancelling_closes_the_connections(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        server.gate.clear()
        loop = OpenLoop(client, maker, REQUESTS[:3])
        running = asyncio.create_task(loop.run(time.perf_counter()))
        await server.until(lambda: server.num_active == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.until(lambda: server.num_active == 0)
    assert [record.finished_s for record in loop.records] == [None] * 3


@pytest.mark.parametrize(
    ("options", "form", "exact"),
    [
        ({}, "token ids", True),
        ({"takes_ignore_eos": False}, "token ids", False),
        ({"takes_token_ids": False}, "text", True),
        ({"has_completions": False, "takes_ignore_eos": False}, "chat", False),
    ],
)
async def test_the_probe_finds_the_server_s_form(
    server: OpenAIServer, options: dict[str, bool], form: str, exact: bool
) -> None:
    for name, value in options.items():
        setattr(server, name, value)
    async with OpenAIClient(server.url, 10) as client:
        maker = await make(server, client)
        assert (maker.abilities.prompt_form, maker.abilities.exact_output) == (form, exact)
        loop = OpenLoop(client, maker, [TraceRequest(0.0, 300, 3)])
        await loop.run(time.perf_counter())
    assert loop.records[0].ok
    assert loop.records[0].prompt_tokens == 300


@pytest.mark.parametrize("salt", ["one", "two", "three", "four"])
async def test_lengths_are_near_wherever_the_probes_are_cut_from(server: OpenAIServer, salt: str) -> None:
    """A third of the text has long words."""
    filler = " ".join(["it was so then"] * 100 + ["unquestionably foreseeable"] * 100)
    server.takes_token_ids, server.count_text = False, letters_per_three
    async with OpenAIClient(server.url, 10) as client:
        maker = await probe(client, "tiny", None, filler, salt, 4096)
    made = [maker.prompts.prompt(TraceRequest(0.0, 1000, 1), index) for index in range(200)]
    assert fmean(letters_per_three(str(prompt)) for prompt in made) == pytest.approx(1000, rel=0.2)


@pytest.mark.parametrize("max_context", [200, None])
async def test_where_the_context_is_short_lengths_are_as_near_as_the_probes(
    server: OpenAIServer, max_context: int | None
) -> None:
    server.takes_token_ids, server.keeps_to_context, server.max_model_len = False, True, 200
    async with OpenAIClient(server.url, 10) as client:
        maker = await probe(client, "tiny", None, None, "salt", max_context)
    assert maker.prompts.calibration == Calibration(2.0, 0.0)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with OpenAIClient("http://127.0.0.1:1/v1", 1) as client:
        with pytest.raises(ServerError, match=r"cannot reach http://127\.0\.0\.1:1: (?!.*ssl)"):
            await client.models()
        with pytest.raises(ServerError, match=r"cannot reach http://127\.0\.0\.1:1"):
            await probe(client, "tiny", None, None, "salt")


async def test_a_password_in_the_address_is_used_and_not_shown(server: OpenAIServer) -> None:
    async with OpenAIClient(server.url.replace("://", "://ann:secret@"), 10) as client:
        assert client.url == server.url and [card.id for card in await client.models()] == ["tiny"]
        with pytest.raises(ServerError) as refused:
            await client.get_json("/nowhere")
    assert "answered 404" in str(refused.value) and "secret" not in str(refused.value)


async def test_a_server_that_is_slow_at_first_is_not_taken_for_another_kind(server: OpenAIServer) -> None:
    server.gate.clear()
    async with OpenAIClient(server.url, 0.2) as client:
        with pytest.raises(ServerError, match=r"takes no request now \(TimeoutError: no whole answer within 0\.2 s\)"):
            await make(server, client)


async def test_a_server_that_is_away_for_a_moment_is_not_taken_for_another_kind(server: OpenAIServer) -> None:
    server.failing_probes = 1
    async with OpenAIClient(server.url, 10) as client:
        with pytest.raises(ServerError, match=r"takes no request now \(503: restarting\)"):
            await make(server, client)
        server.failing_lists = 1
        with pytest.raises(ServerError, match=r"/v1/batches.* answered 503: restarting"):
            await make(server, client)
        assert (await make(server, client)).abilities.batches
