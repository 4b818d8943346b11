"""One message, one record, one batch that cannot be read or written ends by itself, and the service goes on."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from services.offline_queue.batches.input import MAX_CUSTOM_ID_LENGTH
from services.offline_queue.batches.lines import IN_MEMORY_BYTES
from shared.bus import Bus
from shared.protocol import subjects
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

WORK = subjects.of_model(MODEL)
BODY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
PRESET = ("--preset", "sarathi++")  # needs no predictor
UNREADABLE = b"\xc1"  # no MessagePack, and no JSON
LONG_NAME = "\N{EARTH GLOBE EUROPE-AFRICA}" * (MAX_CUSTOM_ID_LENGTH - 8)
NUM_SPILLED = IN_MEMORY_BYTES // len(LONG_NAME.encode()) + 64  # lines with such names do not fit into memory


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path) as made:
        made.start_gateway()
        made.start_executor("executor-0", *PRESET)
        yield made


def until_status(rig: GatewayRig, batch_id: str, *statuses: str) -> openai.types.Batch:
    def is_there() -> bool:
        return rig.openai.batches.retrieve(batch_id).status in statuses

    wait_until(is_there, rig.logs)
    return rig.openai.batches.retrieve(batch_id)


def lines_of(rig: GatewayRig, file_id: str | None) -> dict[str, Any]:
    text = rig.openai.files.content(file_id).text if file_id else ""
    return {line["custom_id"]: line for line in map(json.loads, text.splitlines())}


async def damage(bus: Bus, stream: str, subject: str) -> None:
    """What is stored there is unreadable from here on."""
    await bus.purge(stream, subject)
    await bus.store_raw(subject, UNREADABLE, {})


async def test_unreadable_messages_end_their_lines(rig: GatewayRig) -> None:
    """Both that are there at the start, and those that come later."""
    rig.start_offline_queue(*PRESET)
    rig.stop("executor-0")
    batch_id = rig.submit_batch([BODY] * 5)
    until_status(rig, batch_id, "in_progress")
    rig.stop("offline-queue")
    bus = await Bus.connect(rig.nats_url, "test")
    await damage(bus, subjects.REQUESTS_STREAM, WORK.request(f"{batch_id}.1"))
    await damage(bus, subjects.RESULTS_STREAM, WORK.result(f"{batch_id}.2"))
    await damage(bus, subjects.RESULTS_STREAM, WORK.failure(f"{batch_id}.4", "run"))
    await damage(bus, subjects.RESULTS_STREAM, WORK.result(f"{batch_id}.none"))
    rig.start_offline_queue(*PRESET)
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).request_counts.failed == 2, rig.logs)
    await damage(bus, subjects.RESULTS_STREAM, WORK.result(f"{batch_id}.3"))
    await damage(bus, subjects.RESULTS_STREAM, WORK.failure("batch_none.1", "run"))
    await bus.close()
    rig.start_executor("executor-0", *PRESET)
    batch = until_status(rig, batch_id, "completed")
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
    assert sorted(lines_of(rig, batch.output_file_id)) == ["line-3", "line-4"]
    errors = {name: line["response"]["body"]["error"] for name, line in lines_of(rig, batch.error_file_id).items()}
    assert sorted(errors) == ["line-0", "line-1", "line-2"]
    assert all("cannot be read" in error["message"] for error in errors.values())


async def test_unreadable_records_are_as_good_as_absent(rig: GatewayRig) -> None:
    bus = await Bus.connect(rig.nats_url, "test")
    rig.start_offline_queue(*PRESET)
    kept = until_status(rig, rig.submit_batch([BODY]), "completed")
    await bus.store_raw(f"$KV.{subjects.BATCHES_BUCKET}.batch_odd", UNREADABLE, {})
    await bus.store_raw(f"$KV.{subjects.FILES_BUCKET}.file-odd", UNREADABLE, {})
    await bus.store_raw(f"$KV.{subjects.EXECUTORS_BUCKET}.executor-odd", UNREADABLE, {})
    await bus.close()
    rig.stop("offline-queue")
    rig.start_offline_queue(*PRESET)
    made = until_status(rig, rig.submit_batch([BODY]), "completed")
    assert [batch.id for batch in rig.openai.batches.list()] == [made.id, kept.id]
    assert {file.id for file in rig.openai.files.list()} >= {kept.output_file_id, made.output_file_id}
    for path in ("/v1/batches/batch_odd", "/v1/files/file-odd", "/v1/files/file-odd/content"):
        assert rig.http.get(path).status_code == 404


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux bounds the files of another process")
async def test_no_room_for_temporary_files_fails_the_batch_that_needs_them(rig: GatewayRig) -> None:
    """One while it is read in, one when it is taken up again."""
    rig.stop("executor-0")
    rig.start_offline_queue(*PRESET)
    first = rig.submit_batch([BODY] * NUM_SPILLED, LONG_NAME)
    until_status(rig, first, "in_progress")
    rig.stop("offline-queue")
    rig.start_offline_queue(*PRESET)
    rig.limit_file_size("offline-queue", IN_MEMORY_BYTES // 2)
    second = rig.submit_batch([BODY] * NUM_SPILLED, LONG_NAME)
    third = rig.submit_batch([BODY])
    rig.start_executor("executor-0", *PRESET)
    for batch_id in (first, second):
        batch = until_status(rig, batch_id, "failed")
        assert batch.errors is not None and batch.errors.data is not None
        assert "File too large" in (batch.errors.data[0].message or "")
    assert until_status(rig, third, "completed").request_counts.completed == 1


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux bounds the files of another process")
async def test_a_batch_waits_while_no_more_files_can_be_opened(rig: GatewayRig) -> None:
    rig.start_offline_queue(*PRESET)
    until_status(rig, rig.submit_batch([BODY]), "completed")
    with rig.no_more_files("offline-queue"):
        batch_id = rig.submit_batch([BODY] * NUM_SPILLED, LONG_NAME)
        wait_until(lambda: "batch waits for the disk" in rig.logs(), rig.logs)
        assert rig.openai.batches.retrieve(batch_id).status == "validating"
    until_status(rig, batch_id, "in_progress")
