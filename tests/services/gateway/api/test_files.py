"""/v1/files over real HTTP, with the official client where it can send the request."""

import http.client
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from services.gateway.http.bodies import MAX_FILE_BYTES
from tests.services.gateway.gateway_rig import GatewayRig

LINES = b'{"custom_id":"a"}\n' * 10
BOUNDARY = "test-boundary"


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
def test_bad_list_options_are_400(rig: GatewayRig, query: str, param: str) -> None:
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
