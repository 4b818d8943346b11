"""Tokens that the batches of a key may have queued: who brings too many fails, and leaves nothing behind."""

from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.offline.batches import BatchRecord, FileRecord
from tests.services.offline_queue.batch_desk import TOKENIZER, Desk, chat_line

LINES = [chat_line(f"request {number}") for number in range(10)]  # of as many tokens each
MAX_TOKENS = 8
ORGANIZATION = "organization-acme"


async def with_quota(desk: Desk, name: str, max_queued_tokens: int) -> str:
    """A key of the organization; its client id."""
    keys = await desk.bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
    key = ApiKeyRecord(name, f"hash of {name}", "hint", 0, organization="acme", max_queued_tokens=max_queued_tokens)
    await keys.put(name, key)
    return f"name-{name}"


async def tokens_of(desk: Desk) -> int:
    """Of a batch with LINES, as it is counted."""
    batch_id = await desk.submit(LINES, owner="name-probe")
    async with desk.running(permits=0):
        record = await desk.until_status(batch_id, "in_progress")
        await desk.cancel(batch_id)
        await desk.until_cleared(batch_id)
    return record.queued_tokens


def failed_for(record: BatchRecord) -> str:
    assert record.status == "failed" and record.errors is not None
    (error,) = record.errors.data
    assert error.code == "token_limit_exceeded"
    return error.message


async def test_prompts_and_longest_answers_are_counted_until_their_results_are_there(desk: Desk) -> None:
    whole = await tokens_of(desk)
    assert whole > 10 * (MAX_TOKENS + len(TOKENIZER.encode("Say request 0")))
    batch_id = await desk.submit(LINES, owner="name-alice")
    async with desk.running(permits=4):
        record = await desk.until(batch_id, lambda record: record.request_counts.completed == 4)
        assert 10 * record.queued_tokens == 6 * whole
    async with desk.running():
        assert (await desk.until_cleared(batch_id)).queued_tokens == 0


async def test_a_batch_that_brings_too_many_fails_and_frees_what_it_had(desk: Desk) -> None:
    each = await tokens_of(desk)
    client = await with_quota(desk, "alice", 2 * each)
    async with desk.running(permits=0) as (_, pool):
        first, second = [await desk.submit(LINES, client_id=client, owner=ORGANIZATION) for _ in range(2)]
        for batch_id in (first, second):
            assert (await desk.until_status(batch_id, "in_progress")).queued_tokens == each
        third = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
        record = await desk.until_cleared(third)
        message = failed_for(record)
        assert "the organization 'acme'" in message and f"at most {2 * each:,}" in message
        assert f"other batches have {2 * each:,}, the lines of this one up to here {each:,}" in message
        assert await desk.stored_requests(third) == [] and not any(key.startswith(third) for key in pool.waiting)
        others = await desk.submit(LINES, client_id="name-bob", owner="name-bob")
        assert (await desk.until_status(others, "in_progress")).queued_tokens == each
        await desk.cancel(second)
        await desk.until_cleared(second)
        fourth = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
        await desk.until_status(fourth, "in_progress")


async def test_those_that_are_read_at_once_do_not_exceed_it(desk: Desk) -> None:
    each = await tokens_of(desk)
    clients = [await with_quota(desk, name, 3 * each) for name in ("ann", "ben")]
    made = [await desk.submit(LINES, client_id=clients[number % 2], owner=ORGANIZATION) for number in range(8)]
    async with desk.running(permits=0):
        ends = [await desk.until_status(batch_id, "in_progress", "failed") for batch_id in made]
        assert [record.status for record in ends].count("in_progress") == 3
        assert all(failed_for(record) for record in ends if record.status != "in_progress")


async def test_a_restart_counts_what_is_open(desk: Desk) -> None:
    each = await tokens_of(desk)
    client = await with_quota(desk, "alice", each)
    first = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
    async with desk.running(permits=0):
        await desk.until_status(first, "in_progress")
    second = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
    async with desk.running(permits=0):
        failed_for(await desk.until_status(second, "failed"))
    async with desk.running():
        await desk.until_cleared(first)
        third = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
        assert (await desk.until_cleared(third)).status == "completed"


async def test_a_batch_that_is_too_large_alone_fails_at_its_first_lines(desk: Desk) -> None:
    client = await with_quota(desk, "alice", 100)
    async with desk.running():
        batch_id = await desk.submit(LINES, client_id=client, owner=ORGANIZATION)
        assert "other batches have 0" in failed_for(await desk.until_cleared(batch_id))


async def test_files_that_a_batch_writes_are_its_owners(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("good"), chat_line("crash")], owner=ORGANIZATION)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    files = await desk.bus.bucket(subjects.FILES_BUCKET, FileRecord)
    for file_id in (record.output_file_id, record.error_file_id):
        assert file_id is not None
        file = (await files.get(file_id)).value
        assert file is not None and file.owner == ORGANIZATION
