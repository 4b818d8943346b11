"""Files and batches through the whole stack with the official client, sync and async, and its own types."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from openai.types import Batch, BatchRequestCounts, FileObject

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.batches import FileObject as FileRecord
from shared.protocol.steps import StepStarted
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

WAIT_S = 60.0
EXPIRY: Any = {"anchor": "created_at", "seconds": 3600}
ENDPOINT: Any = "/v1/completions"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("stack")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        made.start_executor("executor-0", "--preset", "sarathi++")
        made.start_gateway()
        made.wait_ready()
        yield made


def lines(count: int, max_tokens: int = 4) -> bytes:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens}
    written = [
        {"custom_id": f"line {n}", "method": "POST", "url": ENDPOINT, "body": body | {"seed": n}} for n in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in written)


def submit(rig: GatewayRig, contents: bytes, **fields: Any) -> Batch:
    uploaded = rig.openai.files.create(file=("in.jsonl", contents), purpose="batch")
    return rig.openai.batches.create(input_file_id=uploaded.id, endpoint=ENDPOINT, completion_window="24h", **fields)


def until_ended(rig: GatewayRig, batch_id: str) -> Batch:
    def has_ended() -> bool:
        return rig.openai.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")

    wait_until(has_ended, rig.logs, WAIT_S)
    return rig.openai.batches.retrieve(batch_id)


def test_requests_that_are_together_more_than_the_bus_takes_enter_one_after_the_other(rig: GatewayRig) -> None:
    """This nats-server takes 1 MiB in a message, as it does where nobody says anything else; these have 2.4."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2, "allowed_token_ids": [*range(40000, 48000)]}
    batch_id = rig.submit_batch([body] * 60)
    assert until_ended(rig, batch_id).request_counts == BatchRequestCounts(total=60, completed=60, failed=0)


def until_in_progress(rig: GatewayRig, batch_id: str) -> None:
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "in_progress", rig.logs, WAIT_S)


def assert_strict(rig: GatewayRig, path: str, type_: type[Batch] | type[FileObject]) -> dict[str, Any]:
    """What the server sends has exactly the types that the client documents, and no field that it does not know."""
    body: dict[str, Any] = rig.http.get(path).raise_for_status().json()
    type_.model_validate(body, strict=True)
    assert set(body) <= set(type_.model_fields), set(body) - set(type_.model_fields)
    return body


def test_every_field_of_an_ended_batch_and_its_files(rig: GatewayRig) -> None:
    contents = lines(
        3
    ) + b'{"custom_id":"bad","method":"POST","url":"/v1/completions","body":{"model":"%b","n":9}}\n' % (MODEL.encode())
    made = submit(rig, contents, metadata={"team": "x"}, output_expires_after=EXPIRY)
    batch = until_ended(rig, made.id)
    body = assert_strict(rig, f"/v1/batches/{made.id}", Batch)
    assert set(body) == set(Batch.model_fields)
    assert (batch.status, batch.model, batch.metadata) == ("completed", MODEL, {"team": "x"})
    assert batch.request_counts is not None and batch.usage is not None
    assert batch.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
    assert batch.usage.output_tokens == 12
    assert batch.usage.total_tokens == batch.usage.input_tokens + 12
    assert batch.expires_at == batch.created_at + 24 * 3600
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert None not in times and times == sorted(times)  # type: ignore[type-var]
    for file_id, count in ((batch.output_file_id, 3), (batch.error_file_id, 1)):
        assert file_id is not None
        assert_strict(rig, f"/v1/files/{file_id}", FileObject)
        file = rig.openai.files.retrieve(file_id)
        assert (file.purpose, file.status) == ("batch_output", "processed")
        assert file.created_at == batch.created_at
        assert file.expires_at is not None and batch.finalizing_at is not None and batch.completed_at is not None
        assert batch.finalizing_at + 3600 <= file.expires_at <= batch.completed_at + 3600
        content = rig.openai.files.content(file_id).read()
        assert (len(content), len(content.splitlines())) == (file.bytes, count)


def answers(rig: GatewayRig, bodies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The lines of both files of a batch of these bodies, by their numbers."""
    contents = b"".join(
        json.dumps({"custom_id": str(n), "method": "POST", "url": ENDPOINT, "body": body}).encode() + b"\n"
        for n, body in enumerate(bodies)
    )
    batch = until_ended(rig, submit(rig, contents).id)
    files = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
    lines = [line for file_id in files for line in rig.openai.files.content(file_id).read().splitlines()]
    return {line["custom_id"]: line["response"]["body"] for line in map(json.loads, lines)}


def test_lines_keep_to_their_schema(rig: GatewayRig) -> None:
    def asked(schema: dict[str, Any]) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return {"model": MODEL, "prompt": "Pick.", "max_tokens": 20, "response_format": form}

    found = answers(rig, [asked({"enum": ["cat", "dog"]}), asked({"const": [1, None]}), asked({"type": "banana"})])
    assert json.loads(found["0"]["choices"][0]["text"]) in ("cat", "dog")
    assert json.loads(found["1"]["choices"][0]["text"]) == [1, None]
    assert found["2"]["error"]["param"] == "response_format"


def test_lines_have_as_many_choices_as_they_ask_for(rig: GatewayRig) -> None:
    """As the same requests have them online."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 9, "seed": 3, "n": 3, "logprobs": 1}
    found = answers(rig, [body, body | {"n": 1, "logprobs": None}])
    online = rig.http.post(ENDPOINT, json=body).json()
    assert found["0"]["choices"] == online["choices"] and len(online["choices"]) == 3
    (alone,) = found["1"]["choices"]
    assert alone["text"] == online["choices"][0]["text"]
    for field in ("prompt_tokens", "completion_tokens"):
        assert found["0"]["usage"][field] == online["usage"][field]


def test_a_line_has_its_logprobs(rig: GatewayRig) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 5, "logprobs": 2, "seed": 1, "ignore_eos": True}
    asked = [body, body | {"logprobs": 5, "max_tokens": 60}, body | {"max_tokens": 3, "logprobs": None}]
    choices = {name: answer["choices"][0] for name, answer in answers(rig, asked).items()}
    online = rig.http.post(ENDPOINT, json=body).json()["choices"][0]
    assert choices["0"] == online and len(online["logprobs"]["tokens"]) == 5
    assert len(choices["1"]["logprobs"]["token_logprobs"]) > 50
    assert choices["2"]["logprobs"] is None


def test_lines_have_the_scores_of_their_prompts(rig: GatewayRig) -> None:
    """As the same requests have them online."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 1, "seed": 1, "ignore_eos": True}
    asked = [{"echo": True, "logprobs": 1}, {"echo": True, "max_tokens": 0}, {"prompt_logprobs": 2, "n": 2}]
    asked.append({"echo": True, "logprobs": 0, "max_tokens": 0})
    bodies = [body | each for each in asked]
    found = answers(rig, bodies)
    for number, each in enumerate(bodies):
        assert found[str(number)]["choices"] == rig.http.post(ENDPOINT, json=each).json()["choices"]
    assert [found[str(number)]["usage"]["completion_tokens"] for number in range(4)] == [1, 0, 2, 0]


async def test_the_async_client_pages_through_everything(rig: GatewayRig) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        files = [await client.files.create(file=(f"{n}.jsonl", lines(1)), purpose="batch") for n in range(5)]
        made = [
            await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
            for file in files
        ]
        seen = [batch.id async for batch in client.batches.list(limit=2)]
        assert seen[:5] == [batch.id for batch in reversed(made)]
        assert len(seen) == len(set(seen))
        inputs = [file.id async for file in client.files.list(limit=2, purpose="batch", order="asc")]
        assert inputs[-5:] == [file.id for file in files]
        for batch in made:
            await asyncio.to_thread(until_ended, rig, batch.id)
        outputs = [file.id async for file in client.files.list(limit=3, purpose="batch_output")]
        assert len(set(outputs)) == len(outputs) >= 5


def test_who_pages_may_delete_what_it_has_seen(rig: GatewayRig) -> None:
    made = [rig.openai.files.create(file=(f"{n}.jsonl", lines(1)), purpose="batch").id for n in range(6)]
    deleted = []
    for file in rig.openai.files.list(limit=2, purpose="batch"):
        deleted.append(file.id)
        rig.openai.files.delete(file.id)
    assert deleted[:6] == made[::-1]
    assert list(rig.openai.files.list(purpose="batch")) == []
    for name in "xy":
        until_ended(rig, submit(rig, lines(1), metadata={"name": name}).id)
    outputs = [file.id for file in rig.openai.files.list(purpose="batch_output")]
    deleted.clear()
    for file in rig.openai.files.list(limit=1, purpose="batch_output"):
        deleted.append(file.id)
        rig.openai.files.delete(file.id)
    assert deleted == outputs and len(outputs) >= 2


async def test_an_expired_file_is_gone_for_every_call(rig: GatewayRig) -> None:
    file = rig.openai.files.create(file=("a.jsonl", lines(1)), purpose="batch", expires_after=EXPIRY)
    bus = await Bus.connect(rig.nats_url, "test")
    records = await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    await records.edit(file.id, lambda record: replace(record, expires_at=record.created_at - 3600))
    try:
        for call in (rig.openai.files.retrieve, rig.openai.files.content, rig.openai.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(file.id)
        with pytest.raises(openai.NotFoundError):
            rig.openai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        assert file.id not in [each.id for each in rig.openai.files.list()]
        async with asyncio.timeout(WAIT_S):  # and the offline-queue deletes it
            async for entry in records.watch():
                if entry is not None and entry.key == file.id and entry.value is None:
                    break
    finally:
        await bus.close()


async def test_a_cancelled_batch_leaves_the_executor(rig: GatewayRig) -> None:
    """Of its requests nothing is held any more in the steps after the cancellation, though others run on."""
    bus = await Bus.connect(rig.nats_url, "test")
    steps: asyncio.Queue[StepStarted] = asyncio.Queue()
    beats: asyncio.Queue[Heartbeat] = asyncio.Queue()
    await bus.subscribe(subjects.STEPS, StepStarted, steps.put)
    await bus.subscribe(subjects.HEARTBEATS, Heartbeat, beats.put)
    try:
        long, other = [await asyncio.to_thread(submit, rig, lines(200, max_tokens=4000)) for _ in range(2)]
        for made in (long, other):
            await asyncio.to_thread(until_in_progress, rig, made.id)
        async with asyncio.timeout(WAIT_S):
            while not holds(await steps.get(), long.id):
                pass
            cancelling = await asyncio.to_thread(rig.openai.batches.cancel, long.id)
            assert cancelling.status == "cancelling"
            while holds(await steps.get(), long.id):
                pass
            await asyncio.to_thread(rig.openai.batches.cancel, other.id)
            while holds(step := await steps.get(), other.id) or not step.idle:
                assert not holds(step, long.id)
            while (beat := await beats.get()).offline_running + beat.offline_waiting:
                pass
        for made in (long, other):
            ended = await asyncio.to_thread(until_ended, rig, made.id)
            assert ended.status == "cancelled" and ended.request_counts is not None
            assert (ended.request_counts.total, ended.request_counts.failed) == (200, 0)
            assert_strict(rig, f"/v1/batches/{made.id}", Batch)
    finally:
        await bus.close()


def holds(step: StepStarted, batch_id: str) -> bool:
    return any(state.request_id.startswith(f"{batch_id}.") for state in step.states)


async def test_a_small_batch_does_not_wait_for_the_large_one_of_another_client(rig: GatewayRig) -> None:
    """Nor for the large one of its own."""
    large = await asyncio.to_thread(submit, rig, lines(2000, max_tokens=200))
    await asyncio.to_thread(until_in_progress, rig, large.id)
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="another", max_retries=0) as other:
        file = await other.files.create(file=("in.jsonl", lines(30)), purpose="batch")
        theirs = await other.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    own = await asyncio.to_thread(submit, rig, lines(30))
    for small in (theirs, own):
        assert (await asyncio.to_thread(until_ended, rig, small.id)).status == "completed"
    assert rig.openai.batches.retrieve(large.id).status == "in_progress"
    bus = await Bus.connect(rig.nats_url, "test")
    try:
        records = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
        made = [(await records.get(each.id)).value for each in (large, theirs, own)]
    finally:
        await bus.close()
    first, second, third = [record.client_id for record in made if record is not None]
    assert first == third != second and "another" not in second
    rig.openai.batches.cancel(large.id)
    assert (await asyncio.to_thread(until_ended, rig, large.id)).status == "cancelled"


async def test_a_batch_whose_window_ends_keeps_its_partial_output(rig: GatewayRig) -> None:
    contents = lines(2) + lines(200, max_tokens=4000).replace(b"line ", b"long ")
    made = await asyncio.to_thread(submit, rig, contents)
    bus = await Bus.connect(rig.nats_url, "test")
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    try:
        async with asyncio.timeout(WAIT_S):
            async for entry in batches.watch():
                record = entry.value if entry is not None and entry.key == made.id else None
                if record is not None and record.request_counts.completed >= 2:
                    break
    finally:
        await bus.close()
    growing = f"file-{made.id.removeprefix('batch_')}-output"
    partial = rig.openai.files.content(growing).text
    assert len(rig.openai.files.content(growing).read()) >= len(partial.encode()) > 0
    assert {"line 0", "line 1"} <= {json.loads(line)["custom_id"] for line in partial.splitlines()}
    rig.stop("offline-queue")
    await end_window(rig, made.id)
    rig.start_offline_queue("--preset", "sarathi++")
    batch = await asyncio.to_thread(until_ended, rig, made.id)
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    done = [json.loads(line)["custom_id"] for line in rig.openai.files.content(batch.output_file_id).text.splitlines()]
    left = [json.loads(line) for line in rig.openai.files.content(batch.error_file_id).text.splitlines()]
    assert {"line 0", "line 1"} <= set(done)
    assert {(line["response"], line["error"]["code"]) for line in left} == {(None, "batch_expired")}
    assert len(done) + len(left) == 202


async def end_window(rig: GatewayRig, batch_id: str) -> None:
    """As if it had been created a day earlier."""
    bus = await Bus.connect(rig.nats_url, "test")
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.edit(batch_id, lambda record: replace(record, expires_at=record.created_at))
    await bus.close()
