"""A batch or a file whose creation the bus did not confirm, and creations that are repeated."""

import asyncio
import contextlib
import io
import itertools
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import openai
import pytest
from msgspec.structs import replace
from openai.types import Batch

import shared.bus.connection
from services.gateway.batch_keys import BatchKeys, earlier_ids
from services.gateway.store import BatchStore, FileStore
from shared.bus import Bus, Objects
from shared.clock import SystemClock
from shared.errors import BusError, ConflictError
from shared.openai.errors import RequestError
from shared.protocol import subjects
from shared.protocol.offline.batches import WITHDRAWN, BatchKey, BatchRecord, FileRecord
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'
LINE = LINE.replace(b'"prompt"', f'"model": "{MODEL}", "prompt"'.encode())
PRESET = ("--preset", "sarathi++")  # needs no predictor
KEY = {"Idempotency-Key": "nightly-1"}


class Proxy:
    """Between the gateway and the bus: once told to, something happens before the next creation of a batch is on the
    bus."""

    def __init__(self, rig: GatewayRig) -> None:
        self._rig = rig
        self._act: Callable[[], bool] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_bus_at_creation(self) -> None:
        """Until it gets SIGCONT; the creation lies in its socket."""

        def stop_bus() -> bool:
            self._rig.pause("nats")
            return True

        self._act = stop_bus

    def kill_gateway_at_creation(self) -> None:
        """The creation never comes to the bus."""

        def kill_gateway() -> bool:
            self._rig.stop("gateway", signal.SIGKILL)
            return False

        self._act = kill_gateway

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            bus = socket.create_connection(("127.0.0.1", urlsplit(self._rig.nats_url).port))
            for ends in ((client, bus), (bus, client)):
                threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(65536):
                if self._act is not None and f"HPUB $KV.{subjects.BATCHES_BUCKET}.".encode() in data:
                    act, self._act = self._act, None
                    if not act():
                        return
                sink.sendall(data)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path) as made:
        yield made


@pytest.fixture
def proxy(rig: GatewayRig) -> Iterator[Proxy]:
    made = Proxy(rig)
    rig.start_gateway("--nats", made.url)
    yield made
    made.close()


def upload(rig: GatewayRig, content: bytes = LINE) -> str:
    return rig.openai.files.create(file=("a.jsonl", content), purpose="batch").id


def create(client: openai.OpenAI, input_file: str, **options: Any) -> Batch:
    return client.batches.create(
        input_file_id=input_file, endpoint="/v1/completions", completion_window="24h", **options
    )


def run_all(rig: GatewayRig) -> list[Batch]:
    """Every batch that a client sees, at its end."""
    rig.start_offline_queue(*PRESET)
    rig.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.1")
    ended = ("completed", "failed", "cancelled", "expired")
    wait_until(lambda: all(batch.status in ended for batch in rig.openai.batches.list()), rig.logs)
    return list(rig.openai.batches.list())


@pytest.mark.slow
async def test_a_batch_that_was_answered_503_does_not_happen_later(rig: GatewayRig, proxy: Proxy) -> None:
    input_file = upload(rig)
    proxy.stop_bus_at_creation()
    with pytest.raises(openai.InternalServerError) as refused:
        create(rig.openai, input_file)
    assert refused.value.status_code == 503
    rig.signal("nats", signal.SIGCONT)
    made = create(rig.openai, input_file)
    assert [(batch.id, batch.status) for batch in run_all(rig)] == [(made.id, "completed")]
    bus = await Bus.connect(rig.nats_url, "test")
    records = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    others = [entry.value for entry in await records.entries() if entry.key != made.id]
    assert [each.status for each in others if each is not None] == ["cancelled"]
    await bus.close()


def test_the_clients_own_repetitions_make_one_batch(rig: GatewayRig, proxy: Proxy) -> None:
    input_file = upload(rig)
    proxy.stop_bus_at_creation()
    client = rig.openai.with_options(max_retries=10)
    with ThreadPoolExecutor(1) as thread:
        creating = thread.submit(create, client, input_file, extra_headers=KEY)
        wait_until(lambda: any(event["event"] == "unavailable" for event in rig.log_events("gateway")), rig.logs)
        rig.signal("nats", signal.SIGCONT)
        made = creating.result()
    assert [(batch.id, batch.status) for batch in run_all(rig)] == [(made.id, "completed")]
    assert create(rig.openai, input_file, extra_headers=KEY).id == made.id


def test_a_key_stands_for_one_batch_of_its_client(rig: GatewayRig) -> None:
    rig.start_gateway()
    input_file = upload(rig)
    made = create(rig.openai, input_file, extra_headers=KEY, metadata={"team": "x"})
    assert create(rig.openai, input_file, extra_headers=KEY, metadata={"team": "x"}) == made
    with pytest.raises(openai.BadRequestError, match=made.id):
        create(rig.openai, input_file, extra_headers=KEY)
    another = rig.openai.with_options(api_key="another")
    assert len({made.id, create(another, input_file, extra_headers=KEY).id, create(rig.openai, input_file).id}) == 3


def test_a_repetition_is_answered_though_no_such_batch_could_be_made_any_more(rig: GatewayRig) -> None:
    rig.start_gateway()
    input_file = upload(rig)
    made = create(rig.openai, input_file, extra_headers=KEY)
    rig.openai.files.delete(input_file)
    assert create(rig.openai, input_file, extra_headers=KEY).id == made.id
    with pytest.raises(openai.NotFoundError):
        create(rig.openai, input_file)


def answered(rig: GatewayRig, batch: Batch) -> list[str]:
    """The custom_ids in its output."""
    assert batch.output_file_id is not None
    lines = rig.openai.files.content(batch.output_file_id).text.splitlines()
    return [json.loads(line)["custom_id"] for line in lines]


@pytest.mark.parametrize("with_files", [False, True])
async def test_the_key_of_a_deleted_batch_is_free_and_the_next_one_has_answers_of_its_own(
    rig: GatewayRig, with_files: bool
) -> None:
    rig.start_gateway()
    first = create(rig.openai, upload(rig), extra_headers=KEY)
    (ended,) = run_all(rig)
    assert answered(rig, ended) == ["a"]
    async with a_store(rig) as store, asyncio.timeout(60):
        async for entry in store.records.watch():
            if entry is not None and entry.value is not None and entry.value.cleared:
                break
    assert rig.http.delete(f"/v1/batches/{first.id}", params={"files": with_files}).status_code == 200
    assert ended.output_file_id is not None and ended.output_file_id.startswith(
        f"file-{first.id.removeprefix('batch_')}"
    )
    if with_files:
        assert rig.openai.files.list(after=ended.output_file_id).data == [], "a list goes on after what is gone"
    another = upload(rig, LINE.replace(b'"a"', b'"b"'))
    second = create(rig.openai, another, extra_headers=KEY)
    assert second.id != first.id and create(rig.openai, another, extra_headers=KEY).id == second.id
    ends = ("completed", "failed")
    wait_until(lambda: rig.openai.batches.retrieve(second.id).status in ends, rig.logs)
    assert answered(rig, rig.openai.batches.retrieve(second.id)) == ["b"]


@pytest.mark.parametrize("other_body", [False, True])
def test_a_gateway_that_is_killed_between_key_and_batch_leaves_the_key_of_use(
    rig: GatewayRig, proxy: Proxy, other_body: bool
) -> None:
    input_file = upload(rig)
    proxy.kill_gateway_at_creation()
    with pytest.raises(openai.APIConnectionError):
        create(rig.openai, input_file, extra_headers=KEY)
    assert rig.wait("gateway") == -signal.SIGKILL
    rig.start_gateway()
    fields = {"metadata": {"team": "x"}} if other_body else {}
    made = create(rig.openai, input_file, extra_headers=KEY, **fields)
    assert create(rig.openai, input_file, extra_headers=KEY, **fields) == made
    assert [batch.id for batch in rig.openai.batches.list()] == [made.id]


async def delete(rig: GatewayRig, batch_id: str) -> None:
    """As if it had ended, and nothing of it were left in the streams."""
    bus = await Bus.connect(rig.nats_url, "test")
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.edit(batch_id, lambda found: replace(found, status="cancelled", cleared=True))
    await bus.close()
    assert rig.http.delete(f"/v1/batches/{batch_id}").status_code == 200


async def test_a_list_goes_on_after_a_batch_with_a_key_that_was_deleted(rig: GatewayRig) -> None:
    rig.start_gateway()
    input_file = upload(rig)
    made = [create(rig.openai, input_file, extra_headers={"Idempotency-Key": f"k{number}"}).id for number in range(4)]
    newest_first = [batch.id for batch in rig.openai.batches.list()]
    assert sorted(newest_first) == sorted(made)
    await delete(rig, newest_first[1])
    assert [batch.id for batch in rig.openai.batches.list(after=newest_first[1])] == newest_first[2:]


def record(**fields: Any) -> BatchRecord:
    common = {"endpoint": "/v1/completions", "input_file_id": "file-1", "completion_window": "24h"}
    return BatchRecord(id="batch_1", created_at=1, expires_at=2, status="validating", **common, **fields)


@contextlib.asynccontextmanager
async def a_store(rig: GatewayRig) -> AsyncIterator[BatchStore]:
    """With a connection of its own, as each gateway has it."""
    bus, clock = await Bus.connect(rig.nats_url, "test"), SystemClock()
    keys = BatchKeys(await bus.bucket(subjects.BATCH_KEYS_BUCKET, BatchKey), clock)
    yield BatchStore(await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord), clock, keys)
    await bus.close()


async def test_what_is_withdrawn_leaves_its_key_free_and_what_is_repeated_is_not_withdrawn(rig: GatewayRig) -> None:
    async with a_store(rig) as store:
        first = await store.create(record(), "key")
        await store._withdraw(first)
        second = await store.create(record(), "key")
        assert second.id != first.id and await store.all() == [second]
        repeated = await store.create(record(), "key")
        await store._withdraw(second)
        assert await store.all() == [repeated] and (repeated.id, repeated.status) == (second.id, "validating")
        never_landed = record(client_id="another")
        await store._withdraw(never_landed)
        assert await store.all() == [repeated]


async def test_an_old_key_is_not_swept_while_its_batch_is_made(rig: GatewayRig) -> None:
    async with a_store(rig) as store:
        keys = store.keys.records
        claimed = await store.keys.claim("place")
        fresh = await keys.get("place")
        assert await store.keys.claim("place") == claimed and await keys.get("place") == fresh
        await keys.put("place", BatchKey(claimed, int(SystemClock().unix_s()) - 3700))  # as old as those that go
        swept = await keys.get("place")
        assert await store.keys.claim("place") == claimed
        with pytest.raises(ConflictError):
            await keys.delete("place", swept.revision)
        assert await store.keys.batch_of("place") == claimed


async def test_gateways_that_are_asked_at_once_make_one_batch(rig: GatewayRig) -> None:
    async with a_store(rig) as one, a_store(rig) as other:
        for key in map(str, range(20)):
            made = await asyncio.gather(*(store.create(record(), key) for store in (one, other) * 4))
            assert len({each.id for each in made}) == 1
        assert len(await one.all()) == 20


async def test_no_batch_comes_in_the_place_of_one_that_was_deleted(rig: GatewayRig) -> None:
    """Whoever has deleted it knew nothing of keys, or was killed: its files may be there, and its key has a record."""
    async with a_store(rig) as store:
        first = await store.create(record(), "key")
        await store.records.delete(first.id)
        assert await store.repeated(record(), "key") is None
        second = await store.create(record(metadata={"team": "x"}), "key")
        assert second.id != first.id and await store.all() == [second]


async def test_a_batch_of_a_key_that_the_version_before_made_is_found(rig: GatewayRig) -> None:
    async with a_store(rig) as store:
        withdrawn, made = itertools.islice(earlier_ids("client", "key"), 2)
        await store.records.create(withdrawn, replace(record(client_id="client"), id=withdrawn, claim=WITHDRAWN))
        await store.records.create(made, replace(record(client_id="client"), id=made))
        found = await store.repeated(record(client_id="client"), "key")
        assert found is not None and found.id == made
        with pytest.raises(RequestError, match=made):
            await store.repeated(record(client_id="client", metadata={"team": "x"}), "key")
        await store.records.delete(made)
        after = await store.create(record(client_id="client"), "key")
        assert after.id not in (withdrawn, made) and await store.all() == [after]


class StoppingObjects(Objects):
    """The bus stands still when the contents are stored, before the file's record is."""

    def __init__(self, objects: Objects, rig: GatewayRig) -> None:
        super().__init__(objects._streams, objects._store)
        self._rig = rig

    async def put(self, name: str, data: BinaryIO | bytes) -> int:
        size = await super().put(name, data)
        self._rig.pause("nats")
        return size


async def test_a_file_that_was_not_stored_for_sure_is_gone_with_its_contents(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared.bus.connection, "OPERATION_TIMEOUT_S", 0.5)
    bus = await Bus.connect(rig.nats_url, "test")
    objects, records = await bus.objects(), await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    store = FileStore(records, SystemClock(), StoppingObjects(objects, rig))
    with pytest.raises(BusError):
        await store.create(FileRecord("file-1", len(LINE), 1, "a.jsonl", "batch"), io.BytesIO(LINE))
    rig.signal("nats", signal.SIGCONT)
    assert await store._try_withdraw(store._doubtful.get_nowait())
    assert await store.all() == [] and await objects.all() == {}
    await bus.close()
