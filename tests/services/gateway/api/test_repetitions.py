"""A batch or a file whose creation the bus did not confirm, and creations that are repeated."""

import contextlib
import io
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import openai
import pytest
from openai.types import Batch

import shared.bus.connection
from services.gateway.store import BatchStore, FileStore
from shared.bus import Bus, Objects
from shared.clock import SystemClock
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.batches import BatchRecord, FileRecord
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'
LINE = LINE.replace(b'"prompt"', f'"model": "{MODEL}", "prompt"'.encode())
PRESET = ("--preset", "sarathi++")  # needs no predictor
KEY = {"Idempotency-Key": "nightly-1"}


class Proxy:
    """Between the gateway and the bus: once told to, the bus stands still from the next creation of a batch on, which
    lies in its socket."""

    def __init__(self, rig: GatewayRig) -> None:
        self._rig = rig
        self._is_armed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_bus_at_creation(self) -> None:
        """Until it gets SIGCONT."""
        self._is_armed = True

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
                if self._is_armed and f"HPUB $KV.{subjects.BATCHES_BUCKET}.".encode() in data:
                    self._is_armed = False
                    self._rig.pause("nats")
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


def upload(rig: GatewayRig) -> str:
    return rig.openai.files.create(file=("a.jsonl", LINE), purpose="batch").id


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


def record(**fields: Any) -> BatchRecord:
    common = {"endpoint": "/v1/completions", "input_file_id": "file-1", "completion_window": "24h"}
    return BatchRecord(id="batch_1", created_at=1, expires_at=2, status="validating", **common, **fields)


async def test_what_is_withdrawn_leaves_its_key_free_and_what_is_repeated_is_not_withdrawn(rig: GatewayRig) -> None:
    bus = await Bus.connect(rig.nats_url, "test")
    store = BatchStore(await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord), SystemClock())
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
    await bus.close()


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
