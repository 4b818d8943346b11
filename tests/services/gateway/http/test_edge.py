"""What surrounds every request: its id in answers and logs, limits of size, and web pages of other origins."""

import gzip
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.responses import StoredResponse
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

ORIGIN = "https://app.example"
MAX_BODY_BYTES = 128 * 1024
MAX_PENDING_BODY_BYTES = 300 * 1024
MAX_PROMPT_TOKENS = 50
JSON = {"Content-Type": "application/json"}
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--log-level", "debug")
        limits = ("--max-body-bytes", str(MAX_BODY_BYTES), "--max-prompt-tokens", str(MAX_PROMPT_TOKENS))
        limits += ("--max-pending-body-bytes", str(MAX_PENDING_BODY_BYTES))
        made.start_gateway(*limits, "--cors-origins", ORIGIN, "--log-level", "debug")
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def plain_rig(rig: GatewayRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    """A second gateway, without limits and CORS."""
    with GatewayRig(tmp_path_factory.mktemp("plain"), rig.nats_url) as made:
        made.start_gateway("--body-timeout-s", "1")
        made.wait_ready()
        yield made


@pytest.mark.parametrize("stream", [False, True])
def test_a_clients_request_id_comes_back_and_is_in_the_logs_of_gateway_and_executor(
    rig: GatewayRig, stream: bool
) -> None:
    request_id = f"trace-{stream}:1"
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": stream}
    response = rig.http.post("/v1/completions", json=body, headers={"x-request-id": request_id})
    assert response.status_code == 200 and response.headers["x-request-id"] == request_id

    def logged(process: str, event: str) -> list[str]:
        events = rig.log_events(process)
        return [each["request_id"] for each in events if _is(each, event, request_id)]

    wait_until(lambda: logged("executor-0", "request ended") != [], "the executor's log does not name it")
    assert logged("gateway", "request sent") == logged("executor-0", "request ended")
    answered = [each for each in rig.log_events("gateway") if _is(each, "answered", request_id)]
    assert [(each["path"], each["status"]) for each in answered] == [("/v1/completions", 200)]


def _is(logged: dict[str, object], event: str, request_id: str) -> bool:
    return logged["event"] == event and logged.get("http_request_id") == request_id


def test_every_answer_has_an_id_of_its_own_where_the_client_gave_none_that_is_usable(rig: GatewayRig) -> None:
    given = ["", "with space", "x" * 129, "t\tb"]
    answers = [rig.http.get("/v1/models", headers={"x-request-id": each}) for each in given]
    answers += [
        rig.http.get("/health"),
        rig.http.get("/nothing"),
        rig.http.post("/v1/completions", content=b"{", headers=JSON),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(each.startswith("req_") for each in ids) and len(set(ids)) == len(ids)


def test_the_official_client_reads_the_id(rig: GatewayRig) -> None:
    whole = rig.openai.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert whole._request_id is not None and whole._request_id.startswith("req_")
    with pytest.raises(openai.NotFoundError) as caught:
        rig.openai.models.retrieve("gpt-17", extra_headers={"x-request-id": "mine"})
    assert caught.value.request_id == "mine"


def test_a_body_that_is_too_large_is_refused(rig: GatewayRig) -> None:
    response = rig.complete(prompt="x" * MAX_BODY_BYTES)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    chunked = rig.http.post("/v1/completions", content=iter([b" " * 1024] * (MAX_BODY_BYTES // 1024 + 1)), headers=JSON)
    assert chunked.status_code == 413


def test_a_packed_body_is_refused(rig: GatewayRig) -> None:
    body = b'{"model": "%b", "prompt": "x", "max_tokens": 1}' % MODEL.encode()
    refused = rig.http.post("/v1/completions", content=gzip.compress(body), headers=JSON | {"Content-Encoding": "gzip"})
    assert refused.status_code == 415 and "Content-Encoding: gzip" in refused.json()["error"]["message"]
    named = rig.http.post("/v1/completions", content=body, headers=JSON | {"Content-Encoding": "Identity"})
    assert named.status_code == 200
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}
    assert rig.http.post("/v1/files", **form, headers={"Content-Encoding": "br"}).status_code == 415


def answer_to_its_end(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection, which it says that it does."""
    answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert b"\r\nconnection: close\r\n" in answer.lower()
    return answer


def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(rig: GatewayRig) -> None:
    head = f"{HEAD}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rig.port), timeout=10) as client:
        client.sendall(head.encode())
        assert answer_to_its_end(client).startswith(b"HTTP/1.1 413")


def test_large_bodies_that_come_at_the_same_time_are_bounded_together_and_small_ones_pass(rig: GatewayRig) -> None:
    """Two of 128 KiB are on their way, and there is room for 300 KiB."""
    head = f"{HEAD}Content-Length: {MAX_BODY_BYTES}\r\n\r\n"
    almost_whole = head.encode() + b" " * (MAX_BODY_BYTES - 1)
    large, small = "x" * 100_000, "x" * 60_000
    with ExitStack() as clients:
        for _ in range(2):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", rig.port), timeout=10))
            client.sendall(almost_whole)
            assert rig.complete().status_code == 200  # what came before it has been read
        wait_until(lambda: rig.complete(user=large).status_code == 503, "both are in, and there is room")
        assert rig.metric("slackwater_refused_requests_total", reason="bodies") == 1
        assert rig.complete(user=small).status_code == 200
    wait_until(lambda: rig.complete(user=large).status_code == 200, "they are gone, and there is no room")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"


def upgrading(body: bytes, is_chunked: bool = False) -> bytes:
    """A completion as Java's HTTP client asks for it, which would rather have HTTP/2."""
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    return HEAD.encode() + UPGRADE + framing + b"\r\n\r\n" + framed


def answers(client: socket.socket, number: int) -> list[bytes]:
    """The bodies of so many."""
    found = []
    with client.makefile("rb") as stream:
        for _ in range(number):
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = dict(line.lower().split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
            found.append(stream.read(int(headers[b"content-length"])))
    return found


@pytest.mark.parametrize("num_bytes", [1, 7, 100, 10_000], ids=lambda each: f"{each} at a time")
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_is_passed_over(plain_rig: GatewayRig, is_chunked: bool, num_bytes: int) -> None:
    body = b'{"model": "%b", "prompt": "x", "max_tokens": 3, "seed": 1, "ignore_eos": true}' % MODEL.encode()
    expected = plain_rig.complete(prompt="x", max_tokens=3, ignore_eos=True).json()["choices"]
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + b"\r\n"
    sent = upgrading(body, is_chunked) + health + upgrading(body, not is_chunked) + b"GET /health HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", plain_rig.port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), num_bytes):
            client.sendall(sent[start : start + num_bytes])
        first, second, third, fourth = answers(client, 4)
    assert [json.loads(each)["choices"] for each in (first, third)] == [expected] * 2
    assert second == fourth == b'{"status":"ok"}'


def test_an_offer_with_a_body_whose_end_nobody_knows_ends_the_connection(plain_rig: GatewayRig) -> None:
    with socket.create_connection(("127.0.0.1", plain_rig.port), timeout=10) as client:
        client.sendall(HEAD.encode() + UPGRADE + b"Transfer-Encoding: gzip\r\n\r\nx")
        assert not client.recv(4096).startswith(b"HTTP/1.1 200")
    assert plain_rig.http.get("/health").status_code == 200


def test_a_body_that_does_not_come_is_given_up(plain_rig: GatewayRig) -> None:
    with socket.create_connection(("127.0.0.1", plain_rig.port), timeout=30) as client:
        client.sendall(f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
        assert answer_to_its_end(client).startswith(b"HTTP/1.1 408")


def test_an_upload_that_does_not_go_on_is_given_up(plain_rig: GatewayRig) -> None:
    head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n{'
    with socket.create_connection(("127.0.0.1", plain_rig.port), timeout=30) as client:
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n{part}".encode())
        assert answer_to_its_end(client).startswith(b"HTTP/1.1 408")


def test_a_prompt_that_is_too_long_is_refused(rig: GatewayRig) -> None:
    assert rig.complete(prompt=[7] * MAX_PROMPT_TOKENS).status_code == 200
    response = rig.complete(prompt=[7] * (MAX_PROMPT_TOKENS + 1))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert str(MAX_PROMPT_TOKENS) in error["message"]


def test_pages_of_a_named_origin_may_call_and_read_even_errors(rig: GatewayRig) -> None:
    wanted = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    preflight = rig.http.options(
        "/v1/completions", headers=wanted | {"Access-Control-Request-Headers": "authorization"}
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    refused = rig.http.post("/v1/completions", content=b"{", headers={"Origin": ORIGIN, **JSON})
    assert refused.status_code == 400 and refused.headers["access-control-allow-origin"] == ORIGIN
    told = {name.strip() for name in refused.headers["access-control-expose-headers"].split(",")}
    limits = {f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")}
    assert told == {"x-request-id", "retry-after", "x-should-retry", *limits}


async def test_pages_of_a_named_origin_may_read_that_the_server_failed(rig: GatewayRig) -> None:
    bus = await Bus.connect(rig.nats_url, "test")
    responses = await bus.bucket(subjects.RESPONSES_BUCKET, StoredResponse)
    odd = StoredResponse("resp_odd", "", msgspec.Raw(b"{}"), before=[{}], input=[], output="")
    await responses.put(odd.id, odd)
    await bus.close()
    failed = rig.http.get(f"/v1/responses/{odd.id}/input_items", headers={"Origin": ORIGIN})
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "server_error"
    assert failed.headers["access-control-allow-origin"] == ORIGIN and failed.headers["x-request-id"]
    assert failed.headers["connection"] == "close"


def test_pages_of_other_origins_may_not(rig: GatewayRig, plain_rig: GatewayRig) -> None:
    for each, origin in ((rig, "https://other.example"), (plain_rig, ORIGIN)):
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert each.http.options("/v1/completions", headers=preflight).status_code in (400, 403)
        answer = each.http.get("/v1/models", headers={"Origin": origin})
        assert answer.status_code == 403 and origin in answer.json()["error"]["message"]
        assert "access-control-allow-origin" not in answer.headers


def test_what_a_bus_that_hangs_could_not_do_is_to_be_sent_again(tmp_path: Path) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_executor("executor-0")
        rig.start_gateway()
        rig.wait_ready()
        rig.pause("nats")
        answer = rig.http.get("/v1/batches")
        rig.signal("nats", signal.SIGCONT)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (503, "service_unavailable", "2")
        assert error["message"].startswith("the bus could not do it now; send the request again: ")
