"""What an offline order has learnt, from one process to the next."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from services.offline_queue.order_memory import MAX_RECORDS, OrderMemory
from shared.bus import Bus
from shared.errors import ModelError
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol import subjects
from shared.protocol.offline.learnt import Learnt, LearntBy
from shared.protocol.offline.requests import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.request import Kind
from shared.text.model_folder import tokenizer_digest

BY = LearntBy("blend", "org/model:7b", "0123", 16)


class Remembering(FcfsOrder):
    """Knows how long each answer was, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt: dict[str, int] = {}
        self.num_asked = 0

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        self.learnt[request_id] = num_output_tokens

    def remember(self) -> bytes:
        self.num_asked += 1
        return msgspec.json.encode(self.learnt) if self.learnt else b""

    def recall(self, data: bytes) -> None:
        self.learnt = msgspec.json.decode(data, type=dict[str, int])  # its DecodeError is a ValueError


class Process:
    """An offline-queue's pool and memory, without what they learnt before."""

    def __init__(self, bus: Bus, learnt_by: LearntBy = BY) -> None:
        self.order = Remembering()
        self.pool = OfflinePool(FairShare(self.order), lambda: None, lambda executor_id, ids: None)
        self.memory = OrderMemory(bus, self.pool, learnt_by)

    def end(self, request_id: str, num_output_tokens: int) -> None:
        end_of(self.pool, request_id, num_output_tokens)


def end_of(pool: OfflinePool, request_id: str, num_output_tokens: int) -> None:
    """A request comes, and is answered with so much."""
    request = GenerateRequest(request_id, Kind.OFFLINE, [1, 2, 3], SamplingParams(max_tokens=64), arrival_s=0.0)
    pool.add([OfflineRequest(request, "b", 1, "a", "model")])
    pool.take(request_id, "executor-0")
    pool.learn(request_id, num_output_tokens)
    pool.discard([request_id])


@pytest.fixture
def process(bus: Bus) -> Callable[..., Process]:
    return lambda learnt_by=BY: Process(bus, learnt_by)


async def records(bus: Bus) -> dict[str, int]:
    """Revisions by key."""
    bucket = await bus.bucket(subjects.LEARNT_BUCKET, Learnt)
    return {entry.key: entry.revision for entry in await bucket.entries()}


async def test_the_next_process_knows_what_this_one_learnt(bus: Bus, process: Callable[..., Process]) -> None:
    first = process()
    await first.memory.recall()
    first.end("b.1", 17)
    await first.memory.keep()
    first.end("b.2", 400)
    await first.memory.keep()
    second = process()
    await second.memory.recall()
    assert second.order.learnt == {"b.1": 17, "b.2": 400} and len(second.pool) == 0
    second.end("b.3", 5)
    await second.memory.keep()
    third = process()
    await third.memory.recall()
    assert third.order.learnt == {"b.1": 17, "b.2": 400, "b.3": 5}


async def test_it_is_written_only_when_there_is_something_new(bus: Bus, process: Callable[..., Process]) -> None:
    first = process()
    await first.memory.recall()
    await first.memory.keep()
    assert await records(bus) == {} and first.order.num_asked == 0
    first.end("b.1", 17)
    await first.memory.keep()
    written = await records(bus)
    assert list(written) == [BY.key]
    for _ in range(3):
        await first.memory.keep()
    assert first.order.num_asked == 1
    first.end("b.1", 17)  # the same again
    await first.memory.keep()
    assert first.order.num_asked == 2 and await records(bus) == written
    second = process()
    await second.memory.recall()
    second.end("b.1", 17)
    await second.memory.keep()
    assert await records(bus) == written, "it is what was recalled"


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(BY, model="org/model:8b"),
        msgspec.structs.replace(BY, tokenizer="4567"),
        msgspec.structs.replace(BY, block_size=32),
        msgspec.structs.replace(BY, order="psm"),
    ],
    ids=["model", "tokenizer", "block size", "order"],
)
async def test_it_is_nobody_elses(bus: Bus, process: Callable[..., Process], other: LearntBy) -> None:
    first, second = process(), process(other)
    for each, length in ((first, 17), (second, 99)):
        await each.memory.recall()
        assert each.order.learnt == {}
        each.end("b.1", length)
        await each.memory.keep()
    again = process()
    await again.memory.recall()
    assert again.order.learnt == {"b.1": 17}


@pytest.mark.parametrize("kind", ["order's", "another's", "record"])
async def test_what_cannot_be_used_is_left_out_and_replaced(
    bus: Bus, process: Callable[..., Process], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = await bus.bucket(subjects.LEARNT_BUCKET, Learnt)
    by = msgspec.structs.replace(BY, model="another") if kind == "another's" else BY
    if kind == "record":
        await bus.store_raw(f"$KV.{subjects.LEARNT_BUCKET}.{BY.key}", b"\x00 no record", {})
    else:
        await bucket.put(BY.key, Learnt(by, b"no lengths"))
    first = process()
    await first.memory.recall()
    assert first.order.learnt == {} and [each.levelname for each in caplog.records] == ["WARNING"]
    first.end("b.1", 17)
    await first.memory.keep()
    second = process()
    await second.memory.recall()
    assert second.order.learnt == {"b.1": 17}


async def learn_once(each: Process) -> None:
    await each.memory.recall()
    each.end("b.1", 17)
    await each.memory.keep()


async def test_however_many_models_there_are_each_knows_what_it_learnt(
    bus: Bus, process: Callable[..., Process]
) -> None:
    bys = [msgspec.structs.replace(BY, model=f"model-{number}") for number in range(MAX_RECORDS + 4)]
    for by in bys:
        await learn_once(process(by))
    assert set(await records(bus)) == {by.key for by in bys}


async def test_of_the_others_of_a_model_the_newest_stay(bus: Bus, process: Callable[..., Process]) -> None:
    bys = [msgspec.structs.replace(BY, tokenizer=f"{number:04d}") for number in range(MAX_RECORDS + 4)]
    for by in bys:
        await learn_once(process(by))
    newest = bys[-MAX_RECORDS - 1 :]
    assert set(await records(bus)) == {by.key for by in newest}
    oldest = process(newest[0])
    await oldest.memory.recall()
    assert oldest.order.learnt == {"b.1": 17}, "its own is no other's"


async def test_without_a_bus_it_is_kept_later(
    bus: Bus, process: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process()
    await first.memory.recall()
    first.end("b.1", 17)
    monkeypatch.setattr(bus._client, "may_send", lambda subject: False)
    await first.memory.keep()
    monkeypatch.undo()
    assert await records(bus) == {}
    await first.memory.keep()
    assert list(await records(bus)) == [BY.key]


def test_a_tokenizer_is_known_by_its_file(tmp_path: Path, model_folder: Path) -> None:
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes((model_folder / "tokenizer.json").read_bytes())
    assert tokenizer_digest(tmp_path) == tokenizer_digest(model_folder)
    copy.write_bytes(copy.read_bytes() + b"\n")
    assert tokenizer_digest(tmp_path) != tokenizer_digest(model_folder)
    with pytest.raises(ModelError, match="cannot be read"):
        tokenizer_digest(tmp_path / "nothing")
