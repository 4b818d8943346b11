"""A backlog as batches of a real HTTP server: how long they are watched, what is counted, and that nothing is left."""

import asyncio
import logging
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from loadgen.client.abilities import COMPLETIONS, Abilities, RequestMaker
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError, WorkloadError
from loadgen.offline.batch import OfflineBatch
from loadgen.offline.bodies import OfflineMaker
from loadgen.report.report import OfflineReport
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import token_id_prompts
from tests.loadgen.openai_server import OpenAIServer, serve

POLL_S = 0.05
LONG_S = 30.0  # a window that no test waits for
PROMPTS = [OfflinePrompt(2, text=f"prompt {number}") for number in range(20)]  # four tokens each, and two of output
MAKER = OfflineMaker(
    RequestMaker(Abilities(COMPLETIONS, True, True, True), "tiny", token_id_prompts(None, None, "salt"))
)


@pytest.fixture(autouse=True)
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.offline.batch.POLL_S", POLL_S)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four lines each."""
    monkeypatch.setattr("loadgen.offline.bodies.write_files.__defaults__", (1 << 20, 4))


@pytest.fixture
async def client(server: OpenAIServer) -> AsyncIterator[OpenAIClient]:
    async with OpenAIClient(server.url, 10) as connected:
        yield connected


class Told:
    """What has been told of how many have ended; each time so many more lines of the server's batches are done."""

    def __init__(self, server: OpenAIServer, *more: int) -> None:
        self.ended: list[int] = []
        self._server = server
        self._more: Iterator[int] = iter(more)

    def __call__(self, ended: int, backlog: int) -> None:
        self.ended.append(ended)
        if self._server.batch_lines_done is not None:
            self._server.batch_lines_done += next(self._more, 0)


def batch_of(
    client: OpenAIClient,
    prompts: list[OfflinePrompt] = PROMPTS,
    by_counter: bool = False,
    tell: Callable[[int, int], None] = lambda ended, backlog: None,
) -> OfflineBatch:
    return OfflineBatch(client, MAKER, prompts, tell, by_counter)


async def watched(batch: OfflineBatch, seconds: float, begins_in_s: float = 0.0) -> OfflineReport:
    start_s = time.perf_counter() + begins_in_s
    await batch.run(start_s, start_s + seconds)
    return batch.report()


async def test_a_backlog_of_one_is_a_batch_of_its_endpoint(server: OpenAIServer, client: OpenAIClient) -> None:
    server.batch_lines_done = 0
    told = Told(server, 0, 1)
    batch = batch_of(client, PROMPTS[:1], tell=told)
    await batch.start()
    ((batch_id, created),) = server.batches.items()
    assert [each.id for each in batch.batches] == [batch_id] and told.ended == [0], "it is in no validation any more"
    assert (created["endpoint"], created["completion_window"]) == (COMPLETIONS, "24h")
    assert [line["custom_id"] for line in created["lines"]] == ["replay-1"]
    await batch.stop(drain=True)
    assert told.ended == [0, 0, 1] and server.batches[batch_id]["status"] == "completed"


async def test_a_batch_that_the_server_refuses_is_an_error(server: OpenAIServer, client: OpenAIClient) -> None:
    server.refuses_batches = True
    with pytest.raises(ServerError, match=r'was refused: {"data":.*no such model'):
        await batch_of(client).start()


async def test_an_input_that_cannot_be_written_is_an_error(
    client: OpenAIClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    batch = batch_of(client)
    with pytest.raises(WorkloadError, match=r"cannot write the backlog's batches .* No such file or directory"):
        await batch.start()
    await batch.stop(drain=False)


async def test_a_batch_that_the_server_ends_is_over(server: OpenAIServer, client: OpenAIClient) -> None:
    """Its rates are not over what is left of the window."""
    server.batch_lines_done = 0
    told = Told(server, 0, 8)

    def expire(ended: int, backlog: int) -> None:
        told(ended, backlog)
        if ended:
            (expiring,) = server.batches.values()
            expiring["status"] = "expired"

    batch = batch_of(client, tell=expire)
    await batch.start()
    report = await watched(batch, LONG_S)
    ((batch_id, _),) = server.batches.items()
    assert (report.completed, report.exhausted) == (8, True) and report.elapsed_s < LONG_S / 2
    assert batch.notes == [f"batch {batch_id} ended before all of it was done: expired"]
    await batch.stop(drain=False)
    assert not server.cancels and len(batch.notes) == 1


async def test_what_is_counted_is_done_between_the_ends_of_the_window(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    """And no batch is looked at more often than its period asks."""
    server.batch_lines_done = 0
    told = Told(server, *[5] * 100)
    batch = batch_of(client, [OfflinePrompt(2, text=f"prompt {number}") for number in range(1000)], tell=told)
    began_s = time.perf_counter()
    await batch.start()
    polls = server.polls.total()
    report = await watched(batch, 5 * POLL_S, begins_in_s=POLL_S)
    assert server.polls.total() - polls <= 7
    assert (report.mode, report.backlog, report.errors, report.exhausted) == ("batch", 1000, 0, False)
    assert report.completed == told.ended[-1] - told.ended[polls] and told.ended[polls] > 0
    assert 0 < report.elapsed_s < time.perf_counter() - began_s
    assert report.requests_per_s == pytest.approx(report.completed / report.elapsed_s)
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)
    assert report.total_tokens_per_s == pytest.approx(6 * report.requests_per_s)
    await batch.stop(drain=False)


@pytest.mark.parametrize("live_usage", [True, False])
async def test_a_backlog_that_is_done_before_the_window_counts_from_its_creation(
    server: OpenAIServer, client: OpenAIClient, live_usage: bool
) -> None:
    server.batch_lines_done, server.live_usage = 20, live_usage
    batch = batch_of(client)
    began_s = time.perf_counter()
    await batch.start()
    report = await watched(batch, LONG_S, begins_in_s=2 * POLL_S)
    assert (report.completed, report.exhausted, report.errors) == (20, True, 0)
    assert 2 * POLL_S < report.elapsed_s < time.perf_counter() - began_s
    await batch.stop(drain=False)
    report = batch.report()
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)
    assert report.total_tokens_per_s == pytest.approx(6 * report.requests_per_s)
    assert server.files == {}


async def test_tokens_that_are_told_at_the_end_count_from_the_creation_too(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    """Those done before the window are in the output file with the others."""
    server.batch_lines_done, server.live_usage = 0, False
    batch = batch_of(client, tell=Told(server, 8, 12))
    await batch.start()
    report = await watched(batch, LONG_S)
    assert report.exhausted and report.completed == 12
    assert report.output_tokens_per_s is report.total_tokens_per_s is None
    await batch.stop(drain=False)
    report = batch.report()
    assert report.completed == 20 and report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)


async def test_so_do_tokens_that_a_batch_tells_when_it_has_ended(server: OpenAIServer, client: OpenAIClient) -> None:
    server.batch_lines_done, server.live_usage = 0, False
    told = Told(server, 8, 0, 12)

    def tell(ended: int, backlog: int) -> None:
        told(ended, backlog)
        server.live_usage = server.batch_lines_done == 20

    batch = batch_of(client, tell=tell)
    await batch.start()
    report = await watched(batch, LONG_S, begins_in_s=2 * POLL_S)
    assert report.exhausted and report.completed == 20 and report.elapsed_s > 2 * POLL_S
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)
    await batch.stop(drain=False)


async def test_tokens_of_a_window_are_not_those_of_what_is_drained_behind_it(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    server.batch_lines_done, server.live_usage = 8, False
    batch = batch_of(client)
    await batch.start()
    report = await watched(batch, POLL_S)
    server.batch_lines_done = 20
    await batch.stop(drain=True)
    assert batch.report() == report and report.output_tokens_per_s is None
    ((batch_id, _),) = server.batches.items()
    assert set(server.files) == {f"{batch_id}-output", f"{batch_id}-error"}, "the answers have been waited for"


@pytest.mark.parametrize("by_counter", [True, False])
async def test_tokens_come_from_the_servers_counter_where_that_is_wanted(
    server: OpenAIServer, client: OpenAIClient, by_counter: bool
) -> None:
    server.batch_lines_done, server.generated_per_s = 0, 1e6
    prompts = [OfflinePrompt(2, num_prompt_tokens=8) for _ in range(1000)]
    batch = batch_of(client, prompts, by_counter, Told(server, 1, 1, 1))
    await batch.start()
    report = await watched(batch, 4 * POLL_S)
    assert report.output_tokens_per_s is not None and (report.output_tokens_per_s > 1e5) is by_counter
    assert report.total_tokens_per_s == pytest.approx(5 * report.output_tokens_per_s, rel=1e-3)
    await batch.stop(drain=False)
    for more in ((5,), (2, 3)):  # before the window, or within it
        server.batch_lines_done = 0
        done = batch_of(client, prompts[:5], by_counter, Told(server, *more))
        await done.start()
        report = await watched(done, LONG_S)
        assert report.exhausted and report.completed == (3 if len(more) > 1 else 5)
        assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s), "of a backlog that ran out"


async def test_prompt_tokens_are_in_proportion_where_lengths_are_not_known(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    server.batch_lines_done, server.generated_per_s = 0, 1e6
    batch = batch_of(client, PROMPTS, True, Told(server, 1, 1, 1))
    await batch.start()
    report = await watched(batch, 4 * POLL_S)
    assert report.output_tokens_per_s is not None and report.output_tokens_per_s > 1e5
    assert report.total_tokens_per_s == pytest.approx(3 * report.output_tokens_per_s, rel=1e-3)
    await batch.stop(drain=False)
    server.batch_lines_done = 0
    nothing = batch_of(client, PROMPTS, True)
    await nothing.start()
    report = await watched(nothing, 20 * POLL_S)
    assert report.output_tokens_per_s and report.total_tokens_per_s is None, "none has ended"
    await nothing.stop(drain=False)


async def test_several_batches_are_one_backlog(server: OpenAIServer, client: OpenAIClient, small_files: None) -> None:
    server.batch_lines_done = 1
    told = Told(server, 0, 0, 0, 9)
    batch = batch_of(client, PROMPTS[:9], tell=told)
    await batch.start()
    report = await watched(batch, LONG_S)
    assert [len(each["lines"]) for each in server.batches.values()] == [4, 4, 1]
    assert report.exhausted and told.ended == [3, 3, 3, 3, 9]
    assert [server.polls[batch_id] for batch_id in server.batches] == [5, 5, 1], "one that has ended is asked no more"
    await batch.stop(drain=False)
    report = batch.report()
    assert report.output_tokens_per_s == pytest.approx(2 * report.requests_per_s)
    assert server.files == {} and not server.cancels


async def test_each_batch_is_asked_once_to_be_cancelled(
    server: OpenAIServer, client: OpenAIClient, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Again only where the server did not take that; and never one that has ended."""
    caplog.set_level(logging.INFO, "loadgen.offline.batch")
    server.batch_lines_done, server.polls_to_cancel, server.failing_cancels = 1, 3, 1
    batch = batch_of(client, PROMPTS[:9])
    await batch.start()
    long = list(server.batches)[:2]
    assert [each["status"] for each in server.batches.values()] == ["in_progress", "in_progress", "completed"]
    await batch.stop(drain=False)
    assert [server.batches[each]["status"] for each in long] == ["cancelled"] * 2
    assert dict(server.cancels) == dict.fromkeys(long, 1) and server.files == {}
    (record,) = (record for record in caplog.records if record.message == "not cancelled yet")
    assert (record.batch_id, "restarting" in record.error) == (long[0], True)  # type: ignore[attr-defined]


async def test_what_is_not_cancelled_in_time_is_told(
    server: OpenAIServer, client: OpenAIClient, small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.offline.batch.CANCEL_TIMEOUT_S", 0.3)
    server.batch_lines_done, server.failing_cancels = 1, 1_000_000
    batch = batch_of(client, PROMPTS[:9])
    await batch.start()
    first, second, _ = server.batches
    with pytest.raises(ServerError, match=f"^not cancelled after 0.3 s: {first}, {second}$"):
        await batch.stop(drain=False)


class Warned(logging.Handler):
    """How often it has been told that a server is away."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.times = 0
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.times += 1
        self._changed.set()

    async def until(self, times: int) -> None:
        async with asyncio.timeout(60):
            while self.times < times:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def warned() -> Iterator[Warned]:
    logger, handler = logging.getLogger("loadgen.offline.batch"), Warned()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def looked_at(server: OpenAIServer) -> None:
    polls = server.polls.total()
    await server.until(lambda: server.polls.total() > polls)


@pytest.mark.parametrize("drain", [True, False])
async def test_a_server_that_comes_back_is_asked_again(drain: bool, warned: Warned) -> None:
    """Each time, and each time it is told once that nobody could reach it."""
    server = OpenAIServer(batch_lines_done=1, failing_cancels=1_000_000)
    running, serving = serve(server)
    async with OpenAIClient(server.url, 10) as client:
        batch = batch_of(client)
        await batch.start()
        stopping = asyncio.create_task(batch.stop(drain))
        for times in (1, 2):
            running.should_exit = True
            await serving
            await warned.until(times)
            if times == 2:
                server.failing_cancels, server.batch_lines_done = (1_000_000, 20) if drain else (0, 1)
            running, serving = serve(server, int(server.url.rpartition(":")[2]))
            await looked_at(server)
        await stopping
    running.should_exit = True
    await serving
    ended = [each["status"] for each in server.batches.values()]
    assert (ended, warned.times) == (["completed" if drain else "cancelled"], 2)


async def test_a_server_that_does_not_come_back_is_told_of(monkeypatch: pytest.MonkeyPatch, small_files: None) -> None:
    """With what may still be on it."""
    monkeypatch.setattr("loadgen.offline.batch.SILENT_S", 0.3)
    monkeypatch.setattr("loadgen.offline.batch.PATIENCE_S", 0.3)
    server = OpenAIServer(batch_lines_done=1)
    running, serving = serve(server)
    async with OpenAIClient(server.url, 10) as client:
        batch = batch_of(client, PROMPTS[:9])
        await batch.start()
        running.should_exit = True
        await serving
        left = ", ".join(list(server.batches)[:2])
        with pytest.raises(ServerError, match=f"^{server.url} has gone: not cancelled: {left}$"):
            await batch.stop(drain=False)
        with pytest.raises(ServerError, match=f"^{server.url} has not answered for 0.3 s: {left}$"):
            await batch.stop(drain=True)


async def test_a_server_that_is_away_when_the_window_begins_counts_from_the_creation(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    server.batch_lines_done = 8
    batch = batch_of(client)
    await batch.start()
    server.failing_polls = 1
    assert (await watched(batch, 4 * POLL_S)).completed == 8
    server.failing_polls = 1_000
    assert (await watched(batch, 2 * POLL_S)).completed == 0, "nothing is known of it"
    server.failing_polls = 0
    await batch.stop(drain=False)


async def test_a_server_that_is_away_when_the_window_ends_is_told_of(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    server.batch_lines_done = 0

    def tell(ended: int, backlog: int) -> None:
        server.batch_lines_done = 5
        server.failing_polls = 1_000_000 if ended else 0

    batch = batch_of(client, tell=tell)
    await batch.start()
    server.batch_lines_done = 0
    report = await watched(batch, 5 * POLL_S)
    assert (report.completed, report.exhausted) == (5, False) and report.elapsed_s < 4 * POLL_S
    assert len(batch.notes) == 1 and re.search(r"rates are over \d\.\d s$", batch.notes[0])
    server.failing_polls = 0
    await batch.stop(drain=False)


async def test_why_lines_failed_is_read_once(server: OpenAIServer, client: OpenAIClient) -> None:
    """Where some did, before the files are deleted; files that are gone already are as deleted."""
    server.batch_lines_done, server.refused_prompts = 20, ("prompt 3", "prompt 7")
    batch = batch_of(client)
    await batch.start()
    report = await watched(batch, LONG_S)
    assert (report.completed, report.errors, report.exhausted, batch.failures) == (18, 2, True, [])
    server.files.pop(next(iter(server.files)))
    await batch.stop(drain=False)
    assert batch.failures == ["400: 0 tokens too many", "400: 1 tokens too many"] and server.files == {}
    await batch.stop(drain=False)
    assert len(batch.failures) == 2


async def test_files_that_stay_are_told(server: OpenAIServer, client: OpenAIClient) -> None:
    server.batch_lines_done, server.deletes_files = 20, False
    batch = batch_of(client)
    await batch.start()
    await watched(batch, LONG_S)
    with pytest.raises(ServerError, match=r"^files of the backlog are still on the server: .*files stay"):
        await batch.stop(drain=False)
    assert batch.failures == []


async def test_who_is_stopped_while_a_batch_is_created_is_stopped_whatever_becomes_of_it(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    server.creating.clear()
    server.loses_creations = True
    starting = asyncio.create_task(batch_of(client).start())
    await server.until(lambda: bool(server.batches))
    starting.cancel()
    server.creating.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
