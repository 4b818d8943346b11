"""/v1/files and /v1/batches over real HTTP, with the official client where it can send the request. No offline-queue
runs, so that the test is the only other writer of the records."""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types import Batch

from services.gateway.api.batches import shown as shown_batch
from services.gateway.http.bodies import MAX_FILE_BYTES
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchRecord, FileObject, LineError, LineErrors, RequestCounts, Usage
from tests.services.gateway.gateway_rig import GatewayRig

LINES = b'{"custom_id":"a"}\n' * 10
BOUNDARY = "test-boundary"
HOUR_S = 3600


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway()
        yield made


def test_a_file_goes_from_upload_to_deletion(rig: GatewayRig) -> None:
    made = rig.openai.files.create(file=("näme.jsonl", LINES), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(LINES), "näme.jsonl", "batch")
    assert rig.openai.files.retrieve(made.id) == made
    assert rig.openai.files.content(made.id).read() == LINES
    deleted = rig.openai.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError):
        rig.openai.files.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        rig.openai.files.content(made.id)


def test_contents_of_many_chunks_come_back_as_they_were(rig: GatewayRig) -> None:
    contents = bytes(range(256)) * 12_000
    made = rig.openai.files.create(file=("big.jsonl", contents), purpose="batch")
    assert rig.openai.files.content(made.id).read() == contents


def test_an_upload_is_refused_while_no_more_files_can_be_opened(rig: GatewayRig) -> None:
    contents = LINES * 12_000  # more than is kept in memory
    with httpx.Client(base_url=rig.url) as client:
        client.get("/health")
        with rig.no_more_files("gateway"):
            refused = client.post("/v1/files", files={"file": ("a.jsonl", contents)}, data={"purpose": "batch"})
            assert client.get("/v1/files").status_code == 200  # over the same connection
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert "Too many open files" in refused.json()["error"]["message"]
    assert rig.openai.files.create(file=("a.jsonl", contents), purpose="batch").bytes == len(contents)


def test_a_file_is_read_while_no_more_files_can_be_opened(rig: GatewayRig) -> None:
    """Also where it is the first that a gateway sends."""
    made = rig.openai.files.create(file=("a.jsonl", LINES), purpose="batch")
    rig.stop("gateway")
    rig.start_gateway()
    with httpx.Client(base_url=rig.url) as client:
        client.get("/health")
        with rig.no_more_files("gateway"):
            assert client.get(f"/v1/files/{made.id}/content").content == LINES  # over the same connection


def test_uploads_that_stand_still_are_not_held_in_memory(rig: GatewayRig) -> None:
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    begun = f"{head}Content-Length: {2 * 1024**2}\r\n\r\n".encode() + part + b"x" * 1_000_000
    resident = rig.resident_bytes("gateway")
    with ExitStack() as clients:
        for _ in range(60):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", rig.port), timeout=10))
            client.sendall(begun)
            rig.http.get("/health")
        time.sleep(1)  # for the last of them to be read
        assert rig.resident_bytes("gateway") - resident < 25 * 1024**2


def test_a_field_of_a_form_is_small(rig: GatewayRig) -> None:
    form: Any = {"files": {"file": ("a.jsonl", LINES)}, "data": {"purpose": "batch" * 1000}}
    refused = rig.http.post("/v1/files", **form)
    assert refused.status_code == 400 and "4KB" in refused.json()["error"]["message"]


def test_expiry_is_stored(rig: GatewayRig) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    made = rig.openai.files.create(file=("a.jsonl", LINES), purpose="batch", expires_after=expiry)
    assert made.expires_at == made.created_at + 3600


def test_lists_page_through_everything_in_either_order(rig: GatewayRig) -> None:
    made = [rig.openai.files.create(file=(f"{i}.jsonl", LINES), purpose="batch").id for i in range(5)]
    newest_first = [file.id for file in rig.openai.files.list(limit=2, purpose="batch")]
    assert newest_first[:5] == made[::-1]
    assert [file.id for file in rig.openai.files.list(limit=3, order="asc")] == newest_first[::-1]
    assert list(rig.openai.files.list(purpose="batch_output")) == []
    first = rig.http.get("/v1/files", params={"limit": 2}).json()
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, made[4], made[3])


@pytest.mark.parametrize("file_id", ["file-unknown", "a.b", "*", ">", "%20", "a%2Fb", "é" * 100, "x" * 1000])
@pytest.mark.parametrize("suffix", ["", "/content"])
def test_an_unknown_file_is_404_whatever_its_name(rig: GatewayRig, file_id: str, suffix: str) -> None:
    response = rig.http.get(f"/v1/files/{file_id}{suffix}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("form", "files", "param"),
    [
        ({}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": "fine-tune"}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": ["batch", "batch"]}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": "batch"}, {"other": ("a", LINES)}, "file"),
        ({"purpose": "batch"}, {"file": ("a", b"")}, "file"),
        ({"purpose": "batch"}, {"file": ("n" * 256, LINES)}, "file"),
        ({"purpose": "batch"}, [("file", ("a", LINES)), ("file", ("b", LINES))], "file"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, {"file": ("a", LINES)}, "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            {"file": ("a", LINES)},
            "expires_after[seconds]",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
            {"file": ("a", LINES)},
            "expires_after[seconds]",
        ),
    ],
)
def test_a_bad_upload_names_the_field_and_stores_nothing(
    rig: GatewayRig, form: dict[str, Any], files: Any, param: str
) -> None:
    before = rig.http.get("/v1/files").json()["data"]
    response = rig.http.post("/v1/files", data=form, files=files)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert rig.http.get("/v1/files").json()["data"] == before


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        (f"multipart/form-data; boundary={BOUNDARY}", b"no boundary at all"),
        (f"multipart/form-data; boundary={BOUNDARY}", b"--" + BOUNDARY.encode() + b"\r\nno: disposition\r\n\r\nx"),
    ],
)
def test_a_body_that_is_no_form_is_refused(rig: GatewayRig, content_type: str, body: bytes) -> None:
    response = rig.http.post("/v1/files", content=body, headers={"Content-Type": content_type})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order")])
def test_bad_options_of_a_list_of_files_are_400(rig: GatewayRig, query: str, param: str) -> None:
    response = rig.http.get(f"/v1/files?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_an_unknown_after_is_400(rig: GatewayRig) -> None:
    assert rig.http.get("/v1/files", params={"after": "file-unknown"}).json()["error"]["param"] == "after"


def form_of(num_bytes: int) -> Iterator[bytes]:
    """A multipart body of one file, made while it is sent."""
    yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'.encode()
    yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'.encode()
    piece = b"x" * (1024 * 1024)
    for _ in range(num_bytes // len(piece)):
        yield piece
    yield f"\r\n--{BOUNDARY}--\r\n".encode()


def test_300_megabytes_are_refused_while_they_are_read(rig: GatewayRig) -> None:
    before, resident = rig.http.get("/v1/files").json()["data"], rig.resident_bytes("gateway")
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    response = httpx.post(f"{rig.url}/v1/files", content=form_of(300 * 1024**2), headers=headers, timeout=120)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "file_too_large")
    assert rig.http.get("/v1/files").json()["data"] == before
    assert rig.resident_bytes("gateway") - resident < 50 * 1024**2


def test_a_length_that_is_too_large_is_refused_before_the_body(rig: GatewayRig) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=60)
    connection.putrequest("POST", "/v1/files")
    connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    connection.putheader("Content-Length", str(MAX_FILE_BYTES + 1024**2))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.fixture(scope="module")
def input_file(rig: GatewayRig) -> str:
    return rig.openai.files.create(file=("a.jsonl", b"{}\n"), purpose="batch").id


def create(rig: GatewayRig, input_file: str, window: Any = "24h", **fields: Any) -> Batch:
    return rig.openai.batches.create(
        input_file_id=input_file, endpoint="/v1/completions", completion_window=window, **fields
    )


async def edit(rig: GatewayRig, batch_id: str, **fields: Any) -> None:
    """As the offline-queue does."""
    bus = await Bus.connect(rig.nats_url, "test")
    bucket = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await bucket.edit(batch_id, lambda record: msgspec.structs.replace(record, **fields))
    await bus.close()


async def is_stored(rig: GatewayRig, batch_id: str) -> bool:
    bus = await Bus.connect(rig.nats_url, "test")
    keys = await (await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)).keys()
    await bus.close()
    return batch_id in keys


def test_a_new_batch_waits_for_validation(rig: GatewayRig, input_file: str) -> None:
    made = create(rig, input_file, metadata={"team": "x"})
    assert (made.object, made.status, made.endpoint) == ("batch", "validating", "/v1/completions")
    assert (made.input_file_id, made.completion_window, made.metadata) == (input_file, "24h", {"team": "x"})
    assert made.expires_at == made.created_at + 24 * HOUR_S
    assert made.request_counts is not None and made.request_counts.total == 0
    assert (made.output_file_id, made.error_file_id, made.errors) == (None, None, None)
    assert rig.openai.batches.retrieve(made.id) == made


@pytest.mark.parametrize(
    ("window", "hours"), [("1h", 1), ("36h", 36), ("7d", 7 * 24), ("30d", 30 * 24), ("720h", 30 * 24)]
)
def test_a_window_is_a_number_of_hours_or_days(rig: GatewayRig, input_file: str, window: str, hours: int) -> None:
    made = create(rig, input_file, window)
    assert (made.completion_window, made.expires_at) == (window, made.created_at + hours * HOUR_S)


@pytest.mark.parametrize("is_cleared", [True, False])
async def test_an_ended_batch_is_deleted_and_its_files_stay(rig: GatewayRig, input_file: str, is_cleared: bool) -> None:
    made = create(rig, input_file)
    await edit(rig, made.id, status="completed", cleared=is_cleared)
    deleted = rig.http.delete(f"/v1/batches/{made.id}")
    assert (deleted.status_code, deleted.json()) == (200, {"id": made.id, "object": "batch", "deleted": True})
    assert made.id not in [batch.id for batch in rig.openai.batches.list(limit=100)]
    assert rig.http.get(f"/v1/batches/{made.id}").status_code == 404
    assert rig.http.delete(f"/v1/batches/{made.id}").status_code == 404
    assert await is_stored(rig, made.id) is not is_cleared  # the offline-queue still needs it until it has cleared it
    assert rig.openai.files.retrieve(input_file).id == input_file


async def test_its_files_go_with_a_batch_where_that_is_asked_for(rig: GatewayRig) -> None:
    files = [rig.openai.files.create(file=(name, b"{}\n"), purpose="batch").id for name in ("in", "out", "errors")]
    made, other = create(rig, files[0]), create(rig, files[0])
    await edit(rig, made.id, status="completed", cleared=True, output_file_id=files[1], error_file_id=files[2])
    assert rig.http.delete(f"/v1/batches/{made.id}", params={"files": True}).status_code == 200
    assert [rig.http.get(f"/v1/files/{each}").status_code for each in files] == [200, 404, 404]  # the other reads it
    await edit(rig, other.id, status="cancelled", cleared=True)
    assert rig.http.delete(f"/v1/batches/{other.id}?files=true").status_code == 200
    assert rig.http.get(f"/v1/files/{files[0]}").status_code == 404


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "cancelling"])
async def test_a_batch_at_work_is_not_deleted(rig: GatewayRig, input_file: str, status: str) -> None:
    made = create(rig, input_file)
    await edit(rig, made.id, status=status)
    refused = rig.http.delete(f"/v1/batches/{made.id}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "batch_not_ended")
    assert rig.openai.batches.retrieve(made.id).status == status


def test_batches_are_listed_newest_first(rig: GatewayRig, input_file: str) -> None:
    made = [create(rig, input_file).id for _ in range(5)]
    assert [batch.id for batch in rig.openai.batches.list(limit=2)][:5] == made[::-1]
    first = rig.http.get("/v1/batches", params={"limit": 2}).json()
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, made[4], made[3])


async def test_cancelling_is_written_once_and_only_before_the_end(rig: GatewayRig, input_file: str) -> None:
    made = create(rig, input_file)
    cancelled = rig.openai.batches.cancel(made.id)
    assert cancelled.status == "cancelling" and cancelled.cancelling_at is not None
    assert rig.openai.batches.cancel(made.id) == cancelled
    for status in ("finalizing", "completed", "failed", "expired", "cancelled"):
        await edit(rig, made.id, status=status)
        with pytest.raises(openai.BadRequestError, match=status):
            rig.openai.batches.cancel(made.id)


async def test_the_input_must_be_a_batch_file(rig: GatewayRig, input_file: str) -> None:
    bus = await Bus.connect(rig.nats_url, "test")
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileObject)
    await bucket.put("file-output", FileObject("file-output", 1, 1, "o", "batch_output"))
    await bus.close()
    with pytest.raises(openai.BadRequestError, match="batch_output"):
        create(rig, "file-output")
    with pytest.raises(openai.NotFoundError):
        create(rig, "file-unknown")


@pytest.mark.parametrize("batch_id", ["batch_unknown", "a.b", "*", "%20", "x" * 1000])
def test_an_unknown_batch_is_404(rig: GatewayRig, batch_id: str) -> None:
    assert rig.http.get(f"/v1/batches/{batch_id}").status_code == 404
    response = rig.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "30m"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "721h"}, "completion_window"),
        ({"completion_window": "1h\n"}, "completion_window"),
        ({"completion_window": "a day"}, "completion_window"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": 5}}, "metadata"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_created(
    rig: GatewayRig, input_file: str, fields: dict[str, Any], param: str
) -> None:
    before = rig.http.get("/v1/batches?limit=100").json()["data"]
    good = {"input_file_id": input_file, "endpoint": "/v1/completions", "completion_window": "24h"}
    response = rig.http.post("/v1/batches", json=good | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert rig.http.get("/v1/batches?limit=100").json()["data"] == before


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"{}", 400), (b" " * 65_537, 413)])
def test_a_bad_body_is_refused(rig: GatewayRig, body: bytes, status: int) -> None:
    response = rig.http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=batch_unknown"])
def test_bad_options_of_a_list_of_batches_are_400(rig: GatewayRig, query: str) -> None:
    response = rig.http.get(f"/v1/batches?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, query.split("=")[0])


def test_an_ended_batch_fits_the_clients_type() -> None:
    record = BatchRecord(
        id="batch_1",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=1,
        expires_at=2,
        status="failed",
        errors=LineErrors([LineError("invalid_json_line", "not JSON", 3, "x")]),
        request_counts=RequestCounts(total=5, completed=3, failed=2),
        usage=Usage.of(10, 4, 6),
        client_id="name-alice",
    )
    body = msgspec.json.encode(shown_batch(record))
    assert b"alice" not in body
    shown = Batch.model_validate_json(body, strict=True)
    assert shown.errors is not None and shown.errors.data is not None
    assert (shown.errors.data[0].code, shown.errors.data[0].line) == ("invalid_json_line", 3)
    assert shown.request_counts is not None and shown.request_counts.completed == 3
    assert shown.usage is not None
    assert (shown.usage.total_tokens, shown.usage.input_tokens_details.cached_tokens) == (16, 4)
