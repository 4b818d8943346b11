"""A backlog as plain requests to a real HTTP server: how many at a time, until when, and what of them is counted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from loadgen.client.abilities import COMPLETIONS, Abilities, RequestMaker
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from loadgen.offline.bodies import OfflineMaker
from loadgen.offline.requests import OfflineRequests
from loadgen.report.report import OfflineReport
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import token_id_prompts
from tests.loadgen.openai_server import OpenAIServer

PROMPTS = [OfflinePrompt(2, text=f"prompt {number}") for number in range(9)]
LENGTHS = [OfflinePrompt(2, num_prompt_tokens=8) for _ in range(9)]
MAKER = OfflineMaker(
    RequestMaker(Abilities(COMPLETIONS, True, True, True), "tiny", token_id_prompts(None, None, "salt"))
)
LONG_S = 60.0  # a window that no test waits for
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def client(server: OpenAIServer) -> AsyncIterator[OpenAIClient]:
    async with OpenAIClient(server.url, 10) as connected:
        yield connected


def requests_of(
    client: OpenAIClient,
    prompts: list[OfflinePrompt] = PROMPTS,
    concurrency: int = 3,
    tell: Callable[[int, int], None] = lambda done, backlog: None,
) -> OfflineRequests:
    return OfflineRequests(client, MAKER, prompts, tell, concurrency)


async def window(offline: OfflineRequests, seconds: float) -> None:
    start_s = time.perf_counter()
    await offline.run(start_s, start_s + seconds)


async def test_the_whole_backlog_is_sent_so_many_at_a_time(server: OpenAIServer, client: OpenAIClient) -> None:
    told: list[tuple[int, int]] = []
    offline = requests_of(client, tell=lambda done, backlog: told.append((done, backlog)))
    await offline.start()
    server.gate.clear()
    running = asyncio.create_task(window(offline, LONG_S))
    await server.until(lambda: server.num_active == 3)
    assert offline.report().completed == 0 and not offline.report().exhausted and told == []
    server.gate.set()
    await running
    assert server.max_active == 3 and told == [(number, 9) for number in range(1, 10)]
    assert sorted(body["prompt"] for body in server.bodies) == sorted(prompt.text or "" for prompt in PROMPTS)
    assert all(body["stream"] and body["max_tokens"] == 2 for body in server.bodies)
    report = offline.report()
    assert (report.mode, report.backlog, report.completed, report.errors) == ("requests", 9, 9, 0)
    assert report.exhausted and 0 < report.elapsed_s < LONG_S
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)
    assert report.total_tokens_per_s == pytest.approx(6 * report.requests_per_s)
    await offline.stop(drain=False)
    assert offline.num_again == 0


async def test_before_it_runs_nothing_is_done(server: OpenAIServer, client: OpenAIClient) -> None:
    offline = requests_of(client)
    report = offline.report()
    assert (report.completed, report.elapsed_s, report.requests_per_s, report.exhausted) == (0, 0.0, 0.0, False)
    await offline.stop(drain=True)
    assert server.bodies == []


@pytest.mark.parametrize("drain", [True, False])
async def test_what_is_under_way_at_the_end_is_waited_for_or_let_go(
    server: OpenAIServer, client: OpenAIClient, drain: bool
) -> None:
    server.gate.clear()
    offline = requests_of(client)
    await window(offline, 0.05)
    await server.until(lambda: server.num_active == 3)
    report = offline.report()
    assert report.elapsed_s == pytest.approx(0.05) and not report.exhausted
    stopping = asyncio.create_task(offline.stop(drain))
    if drain:
        server.gate.set()
    async with asyncio.timeout(60):
        await stopping
    assert len(server.bodies) == (9 if drain else 3)
    assert offline.report() == report, "and counts no more"
    if not drain:
        await server.until(lambda: server.num_active == 0)


async def test_a_backlog_that_is_done_before_the_window_counts_from_its_beginning(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    offline = requests_of(client)
    start_s = time.perf_counter() + 1.0
    await offline.run(start_s, start_s + LONG_S)
    assert time.perf_counter() >= start_s, "a window that has not begun has nothing in it"
    report = offline.report()
    assert (report.completed, report.exhausted) == (9, True)
    assert 0 < report.elapsed_s < 1.0 and report.requests_per_s == pytest.approx(9 / report.elapsed_s)
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)


async def test_what_goes_wrong_in_its_making_is_an_error(server: OpenAIServer, client: OpenAIClient) -> None:
    def fail(done: int, backlog: int) -> None:
        raise LookupError

    with pytest.raises(ExceptionGroup):
        await window(requests_of(client, tell=fail), LONG_S)
    server.gate.clear()
    late = requests_of(client, tell=fail)
    await window(late, 0.05)
    server.gate.set()
    with pytest.raises(ExceptionGroup):
        await late.stop(drain=True)


async def test_a_request_that_goes_again_is_one(server: OpenAIServer, client: OpenAIClient) -> None:
    server.fail_with = 503
    offline = requests_of(client)
    running = asyncio.create_task(window(offline, LONG_S))
    await server.until(lambda: server.num_refused >= 3)
    server.fail_with = None
    await running
    report = offline.report()
    assert (report.completed, report.errors, len(offline.records)) == (9, 0, 9)
    assert offline.num_again == server.num_refused and all(record.ok for record in offline.records)


def record(
    *tokens_s: float, finished_s: float | None = None, output: int | None = None, error: str | None = None
) -> RequestRecord:
    """Of a prompt of 10 tokens."""
    return RequestRecord(0.0, 0.0, list(tokens_s), finished_s, 10, output, error)


async def counted(prompts: list[OfflinePrompt], *records: RequestRecord) -> OfflineReport:
    """Of a window of ten seconds, from 0 on, which is long over; records are counted from then."""
    async with OpenAIClient(NOWHERE, 10) as client:
        offline = requests_of(client, prompts)
        start_s = time.perf_counter() - 1000
        await offline.run(start_s, start_s + 10)
        await offline.stop(drain=False)
    for each in records:
        each.token_times_s = [start_s + time_s for time_s in each.token_times_s]
        each.finished_s = None if each.finished_s is None else start_s + each.finished_s
    offline.records[:] = records
    return offline.report()


async def test_tokens_count_when_they_come() -> None:
    """By the server's count of answers that came whole within, else by events. Ends count where they are within."""
    report = await counted(
        LENGTHS,
        record(1.0, 2.0, finished_s=3.0, output=5),  # whole: 5
        record(-2.0, -1.0, 1.0, finished_s=2.0, output=9),  # began before: 1
        record(-3.0, -2.0, finished_s=-1.0, output=2),  # ended before: 0
        record(0.0, 4.0, finished_s=5.0, output=None),  # whole, not counted by the server: 2
        record(9.0, 10.0, 11.0, finished_s=12.0, output=3),  # ends later: 1
        record(9.5, 9.75),  # under way: 2
        record(1.0, 2.0, finished_s=3.0, error="500"),  # failed: 0
        record(9.0, finished_s=11.0, error="500"),  # failed later: 1
        record(-2.0, finished_s=-1.0, error="500"),  # failed before: 0
        record(finished_s=10.0, output=1),  # ends with the window: 0
    )
    assert (report.completed, report.errors, report.exhausted) == (3, 1, False)
    assert report.elapsed_s == pytest.approx(10.0)
    assert report.output_tokens_per_s == pytest.approx((5 + 1 + 2 + 1 + 2 + 1) / 10)
    assert report.total_tokens_per_s == pytest.approx((1 + 4) * 1.2), "as in all of the backlog"


async def test_prompt_tokens_are_in_proportion_to_those_of_whole_answers() -> None:
    records = [record(1.0, finished_s=2.0, output=4), record(-5.0, finished_s=-4.0, output=1), record(9.0, 9.5)]
    records.append(record(1.0, finished_s=2.0, output=4, error="500"))
    report = await counted(PROMPTS, *records)
    assert report.output_tokens_per_s == pytest.approx(0.6)
    assert report.total_tokens_per_s == pytest.approx((6 + 6 * 20 / 5) / 10)
    untold = record(1.0, finished_s=2.0, output=4)
    untold.prompt_tokens = None
    assert (await counted(PROMPTS, untold)).total_tokens_per_s is None, "the server does not tell"
    assert (await counted(PROMPTS, record(9.0, 9.5))).total_tokens_per_s is None, "none has come whole"


async def test_answers_that_are_shorter_than_asked_do_not_count_the_whole_backlogs_prompts() -> None:
    """Of eight prompt and two output tokens each; the one that came whole has ten and one."""
    report = await counted(LENGTHS, record(1.0, finished_s=2.0, output=1), record(9.0, 9.5))
    assert report.output_tokens_per_s == pytest.approx(0.3)
    assert report.total_tokens_per_s == pytest.approx(0.3 * 11)


async def test_a_request_that_waits_to_go_again_has_not_failed() -> None:
    waiting = record(finished_s=1.0, error="503")
    waiting.goes_again = True
    report = await counted(LENGTHS, waiting, record(finished_s=0.0, error="500"), record(0.0, finished_s=0.0, output=1))
    assert (report.completed, report.errors) == (1, 1)
