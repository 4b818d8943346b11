"""What a client can hold of a gateway without a whole request: over real sockets, it is bounded and ends."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.gateway.settings import GatewaySettings
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

MAX_HEADER_BYTES = GatewaySettings(model_path="").max_header_bytes
MAX_CONNECTIONS = 20
FLOODER, OTHER = "127.0.0.2", "127.0.0.3"
CHUNK = b"1\r\nx\r\n"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        limits = ("--max-client-connections", str(MAX_CONNECTIONS), "--keep-alive-s", "1", "--body-timeout-s", "1")
        made.start_gateway("--header-timeout-s", "1", *limits)
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def patient_rig(rig: GatewayRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    """A second gateway, all of whose limits are the default ones."""
    with GatewayRig(tmp_path_factory.mktemp("patient"), rig.nats_url) as made:
        made.start_gateway()
        made.wait_ready()
        yield made


def connect(rig: GatewayRig, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", rig.port), timeout=30, source_address=(address, 0))


def received(client: socket.socket) -> bytes:
    """What has come, and something has."""
    data = client.recv(4096)
    assert data, "the server closed the connection"
    return data


def to_its_end(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    return b"".join(iter(lambda: client.recv(4096), b""))


def error_of(answer: bytes) -> tuple[int, str]:
    """The status and the message of the only answer on a connection."""
    head, body = answer.split(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def dribbled(client: socket.socket, piece: bytes) -> bytes:
    """The answer to a client that sends this again and again, slowly, until it is cut off."""
    is_over = threading.Event()

    def dribble() -> None:
        with client.dup() as sending:
            while not is_over.wait(0.1):
                sending.sendall(piece)

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        return client.recv(4096)
    finally:
        is_over.set()
        thread.join()


HEADS = {
    "one line": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * MAX_HEADER_BYTES,
    "many lines": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X:\r\n" * (MAX_HEADER_BYTES // 4),
    "no header": b"GET /" + b"x" * MAX_HEADER_BYTES,
    "no request": b"\r\n" * MAX_HEADER_BYTES,
    "whole": b"GET /health HTTP/1.1\r\nX: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_headers_are_bounded(patient_rig: GatewayRig, head: bytes) -> None:
    with connect(patient_rig) as client:
        client.sendall(head)
        status, message = error_of(to_its_end(client))
        assert status == 431 and str(MAX_HEADER_BYTES) in message


def test_headers_behind_a_body_are_bounded(patient_rig: GatewayRig) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(patient_rig) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ")
        with pytest.raises(ConnectionError):  # the request had begun, so that there is no other answer
            while True:
                client.sendall(b"x" * MAX_HEADER_BYTES)


def test_headers_within_the_bound_are_taken_in_pieces_of_any_size(patient_rig: GatewayRig) -> None:
    """One long header and many short ones; of requests that are sent ahead, each has the whole bound for itself."""
    line = b"X: " + b"x" * (MAX_HEADER_BYTES // 2)
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\nY: y" * 1000 + b"\r\n\r\n"
    for size in (1000, len(head), 3 * len(head)):
        with connect(patient_rig) as client:
            for begin in range(0, 3 * len(head), size):
                client.sendall((3 * head)[begin : begin + size])
            answers = b""
            while answers.count(b'{"status":"ok"}') < 3:
                answers += received(client)


def test_headers_that_come_too_slowly_are_given_up(rig: GatewayRig) -> None:
    with connect(rig) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        status, message = error_of(dribbled(client, b"x"))
        assert status == 408 and "within 1 s" in message


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_who_asks_for_nothing_is_let_go(rig: GatewayRig, sent: bytes) -> None:
    with connect(rig) as client:
        assert (dribbled(client, sent) if sent else client.recv(1)) == b""


def test_who_asks_for_nothing_more_is_let_go(rig: GatewayRig) -> None:
    with connect(rig) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert to_its_end(client).endswith(b'{"status":"ok"}')


def test_an_upload_that_dribbles_is_given_up(rig: GatewayRig) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n'
    with connect(rig) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(part) + part + b"\r\n")
        assert dribbled(client, CHUNK).startswith(b"HTTP/1.1 408")


def test_a_body_that_nobody_reads_comes_to_an_end(rig: GatewayRig) -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(rig) as client:
        client.sendall(head)
        answer = received(client)
        while not answer.endswith(b"}}"):
            answer += received(client)
        assert answer.startswith(b"HTTP/1.1 404")
        assert dribbled(client, CHUNK) == b""


def test_an_answer_that_takes_its_time_is_not_cut(rig: GatewayRig) -> None:
    """The next request's headers have begun meanwhile, and are not read on before it ends."""
    fields = {"model": MODEL, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(rig) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /health HTTP/1.1\r\n")
        answer = b""
        while not answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            answer += received(client)
        client.sendall(b"Host: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_client_has_so_many_connections_and_others_have_theirs(rig: GatewayRig) -> None:
    refused = rig.metric("slackwater_http_refused_connections_total")
    with ExitStack() as clients:
        streams = [clients.enter_context(connect(rig, FLOODER)) for _ in range(MAX_CONNECTIONS)]
        for stream in streams:
            stream.sendall(b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(4096).startswith(b"HTTP/1.1 200")
        with connect(rig, FLOODER) as one_more:
            status, message = error_of(to_its_end(one_more))
        assert status == 429 and str(MAX_CONNECTIONS) in message
        assert rig.metric("slackwater_http_refused_connections_total") == refused + 1
        with connect(rig, OTHER) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(4096).startswith(b"HTTP/1.1 200")

    def is_served() -> bool:
        with connect(rig, FLOODER) as again:
            again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return again.recv(4096).startswith(b"HTTP/1.1 200")

    wait_until(is_served, "those that are gone count")
