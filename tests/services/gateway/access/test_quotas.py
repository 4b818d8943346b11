"""Quotas of keys, as their clients are told. No offline-queue runs: batches stay open until a test ends them."""

import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import msgspec
import openai
import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.access.api_keys import USER_PERMISSIONS
from shared.protocol.offline.batches import BatchRecord, FileRecord
from tests.services.gateway.access.test_permissions import ADMIN_KEY, client_with
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

CONTENT = b"x" * 100_000
AT_ONCE = 8


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway("--require-keys", "always", "--api-key", ADMIN_KEY)
        yield made


@pytest.fixture
async def bus(rig: GatewayRig) -> AsyncIterator[Bus]:
    made = await Bus.connect(rig.nats_url, "test")
    yield made
    await made.close()


async def client_of(rig: GatewayRig, name: str, **terms: Any) -> httpx.Client:
    return await client_with(rig, name, endpoints=list(USER_PERMISSIONS), **terms)


def upload(client: httpx.Client, content: bytes = CONTENT) -> httpx.Response:
    return client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})


def create(client: httpx.Client, file_id: str, key: str = "") -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return client.post("/v1/batches", json=body, headers={"Idempotency-Key": key} if key else {})


def refusal(answer: httpx.Response) -> str:
    """What a client is told that is refused for its quota."""
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert answer.headers["x-should-retry"] == "false" and int(answer.headers["retry-after"]) > 1
    message: str = error["message"]
    return message


def refused(rig: GatewayRig, reason: str) -> float:
    return rig.metric("slackwater_refused_requests_total", reason=reason)


async def edit(bus: Bus, batch_id: str, **fields: Any) -> None:
    """As the offline-queue does."""
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.edit(batch_id, lambda record: msgspec.structs.replace(record, **fields))


async def test_files_beyond_the_bytes_are_refused_and_leave_nothing(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "small", max_stored_bytes=250_000)) as client:
        first, second = upload(client).json()["id"], upload(client).json()["id"]
        objects = await bus.objects()
        before = refused(rig, "stored_bytes"), set(await objects.all())
        message = refusal(upload(client))
        assert "'small' has 200,000 bytes in files, and this one has 100,000, of at most 250,000; delete" in message
        assert (refused(rig, "stored_bytes"), set(await objects.all())) == (before[0] + 1, before[1])
        assert [each["id"] for each in client.get("/v1/files").json()["data"]] == [second, first]
        assert upload(client, b"x" * 50_000).status_code == 200
        assert create(client, first).status_code == 429, "its outputs would have no room"
        client.delete(f"/v1/files/{second}")
        assert create(client, first).status_code == upload(client).status_code == 200


async def test_what_batches_write_counts(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "writer", max_stored_bytes=150_000)) as client:
        input_file = upload(client).json()["id"]
        files = await bus.bucket(subjects.FILES_BUCKET, FileRecord)
        output = FileRecord("file-big-output", 60_000, 1, "o", "batch_output", owner="name-writer")
        await files.put(output.id, output)
        assert "160,000 bytes" in refusal(upload(client, b"x")) and "160,000" in refusal(create(client, input_file))
        await files.delete(output.id)
        assert create(client, input_file).status_code == 200


@pytest.mark.parametrize("terms", [{"max_stored_bytes": 3 * len(CONTENT)}, {"max_open_batches": 3}])
async def test_those_that_come_at_once_do_not_exceed_it(rig: GatewayRig, terms: dict[str, int]) -> None:
    name = next(iter(terms))
    with closing(await client_of(rig, name.replace("_", "-"), **terms)) as client:

        def ask(number: int, file_id: str) -> httpx.Response:
            return upload(client) if name == "max_stored_bytes" else create(client, file_id)

        file_id = upload(client, b"x").json()["id"] if name == "max_open_batches" else ""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(ask, range(4 * AT_ONCE), [file_id] * 4 * AT_ONCE))
        assert [each.status_code for each in answers].count(200) == 3
        assert all(refusal(each) for each in answers if each.status_code != 200)


async def test_an_upload_that_breaks_off_takes_no_room(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "broken", max_stored_bytes=len(CONTENT))) as client:
        objects = set(await (await bus.objects()).all())
        request = client.build_request("POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("a", CONTENT)})
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", rig.port)) as raw:
                raw.sendall(f"POST /v1/files HTTP/1.1\r\n{head}\r\n".encode() + request.read()[: len(CONTENT) // 2])
        wait_until(lambda: rig.metric("slackwater_http_answering") <= 1, "a broken upload is still there")
        assert client.get("/v1/files").json()["data"] == []
        assert set(await (await bus.objects()).all()) == objects
        assert upload(client).status_code == 200


async def test_open_batches_are_bounded_and_a_repetition_is_none_more(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "two", max_open_batches=2)) as client:
        file_id = upload(client).json()["id"]
        first, second = create(client, file_id, "a").json(), create(client, file_id, "b").json()
        before = refused(rig, "open_batches")
        message = refusal(create(client, file_id, "c"))
        assert "'two' has 2 batches that have not ended, of at most 2; wait until" in message
        assert refused(rig, "open_batches") == before + 1
        assert create(client, file_id, "a").json()["id"] == first["id"]
        client.post(f"/v1/batches/{second['id']}/cancel")
        assert create(client, file_id).status_code == 429, "it is still at work"
        await edit(bus, second["id"], status="cancelled")
        assert create(client, file_id, "c").status_code == 200


async def test_repetitions_that_come_at_once_are_one_batch(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "hasty", max_open_batches=1)) as client:
        file_id = upload(client).json()["id"]
        for number in range(5):
            with ThreadPoolExecutor(AT_ONCE) as threads:
                answers = list(threads.map(lambda key: create(client, file_id, key), [f"key-{number}"] * AT_ONCE))
            assert [each.status_code for each in answers] == [200] * AT_ONCE
            (batch_id,) = {each.json()["id"] for each in answers}
            assert create(client, file_id, "another").status_code == 429
            await edit(bus, batch_id, status="cancelled")


async def test_tokens_that_are_queued_are_bounded(rig: GatewayRig, bus: Bus) -> None:
    with closing(await client_of(rig, "tokens", max_queued_tokens=1000)) as client:
        file_id = upload(client).json()["id"]
        made = create(client, file_id).json()
        await edit(bus, made["id"], status="in_progress", queued_tokens=999)
        assert create(client, file_id).status_code == 200
        await edit(bus, made["id"], queued_tokens=1000)
        message = refusal(create(client, file_id))
        assert "'tokens' has 1,000 tokens queued in batches, of at most 1,000; wait until" in message
        await edit(bus, made["id"], status="completed")
        assert create(client, file_id).status_code == 200


async def test_keys_of_an_organization_count_together(rig: GatewayRig) -> None:
    terms: dict[str, Any] = {"organization": "acme", "max_stored_bytes": 150_000, "max_open_batches": 1}
    one, two = [await client_of(rig, name, **terms) for name in ("acme-1", "acme-2")]
    with closing(one), closing(two):
        file_id = upload(one).json()["id"]
        assert "the organization 'acme' has 100,000 bytes" in refusal(upload(two))
        assert create(two, file_id).status_code == 200 and "'acme'" in refusal(create(one, file_id))
    with closing(await client_of(rig, "acme-boss", organization="acme")) as boss:
        assert upload(boss).status_code == 200, "a key without quotas has none"


async def test_the_official_client_raises_its_rate_limit_error_at_once(rig: GatewayRig) -> None:
    with closing(await client_of(rig, "official", max_stored_bytes=1)) as client:
        key = client.headers["Authorization"].removeprefix("Bearer ")
        with openai.OpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=5) as official:
            before = refused(rig, "stored_bytes")
            with pytest.raises(openai.RateLimitError) as caught:
                official.files.create(file=("a.jsonl", CONTENT), purpose="batch")
            assert caught.value.code == "insufficient_quota" and refused(rig, "stored_bytes") == before + 1
