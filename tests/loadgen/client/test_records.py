"""What has become of a request that was sent to a real HTTP server."""

import time

import pytest

from loadgen.client.abilities import COMPLETIONS, streamed
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from tests.loadgen.openai_server import OpenAIServer


async def sent(url: str, max_tokens: int = 3) -> RequestRecord:
    record = RequestRecord(time.perf_counter())
    body = {"model": "tiny", "prompt": "Hello there", "max_tokens": max_tokens}
    async with OpenAIClient(url, 10) as client:
        await client.stream(streamed(COMPLETIONS, body), record)
    return record


async def test_an_answer_that_came_whole_is_as_long_as_the_server_says(server: OpenAIServer) -> None:
    record = await sent(server.url)
    assert (record.ok, record.failed, record.not_taken) == (True, False, False)
    assert record.num_output_tokens == record.output_tokens == 3
    record.output_tokens = 5  # several in one event
    assert (record.num_output_tokens, len(record.token_times_s)) == (5, 3)
    record.output_tokens = None
    assert record.num_output_tokens == 3, "of a server that does not say"
    record.output_tokens = 0
    assert record.num_output_tokens == 0


@pytest.mark.parametrize(
    ("status", "not_taken"),
    [(429, True), (502, True), (503, True), (504, True), (400, False), (401, False), (500, False)],
)
async def test_a_server_that_refuses_a_request_may_take_it_later(
    server: OpenAIServer, status: int, not_taken: bool
) -> None:
    server.fail_with = status
    record = await sent(server.url)
    assert (record.ok, record.failed, record.not_taken) == (False, True, not_taken)
    record.goes_again = True
    assert (record.ok, record.failed) == (False, False)


async def test_a_server_that_is_away_has_not_taken_it() -> None:
    record = await sent("http://127.0.0.1:1")
    assert (record.ok, record.failed, record.not_taken, record.status) == (False, True, True, None)


def test_what_is_under_way_is_neither() -> None:
    record = RequestRecord(0.0, status=200)
    assert (record.ok, record.failed, record.not_taken) == (False, False, False)
    record.error = "an event was none"
    assert (record.ok, record.failed, record.not_taken) == (False, True, False)
    record.finished_s = 1.0
    assert (record.ok, record.failed, record.not_taken) == (False, True, False)
