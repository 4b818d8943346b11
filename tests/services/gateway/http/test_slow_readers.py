"""Clients that do not read, or leave: over real sockets, nothing of them stays in gateway or executor."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

STORM = 40  # clients
MAX_TOKENS = 8000  # of text that no kernel's buffers hold
WRITE_TIMEOUT_S = 2
NUM_BLOCKS = 100_000


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--kv-blocks", str(NUM_BLOCKS))
        made.start_gateway("--write-timeout-s", str(WRITE_TIMEOUT_S))
        made.wait_ready()
        yield made


def request_bytes(max_tokens: int, stream: bool = True) -> bytes:
    fields = {"model": MODEL, "prompt": "Once upon", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    body = json.dumps(fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def connect(rig: GatewayRig) -> socket.socket:
    """With room for next to nothing that is not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", rig.port))
    return client


def begin(rig: GatewayRig) -> socket.socket:
    """A stream of which the first bytes have come."""
    client = connect(rig)
    client.sendall(request_bytes(MAX_TOKENS))
    assert client.recv(16).startswith(b"HTTP/1.1 200")
    return client


def wait_clean(rig: GatewayRig) -> None:
    """Nothing of any request is left."""
    for metric in ("slackwater_live_requests", "slackwater_executor_online_running", "slackwater_waiting_requests"):
        wait_until(lambda metric=metric: rig.metric(metric) == 0, f"{metric} is not 0", 90)  # type: ignore[misc]
    wait_until(lambda: rig.metric("slackwater_http_answering") == 1, "more is answered than the metrics", 30)
    wait_until(lambda: rig.metric("slackwater_http_connections") <= 2, "connections stay", 30)
    wait_until(lambda: rig.metric("slackwater_executor_num_free_blocks") == NUM_BLOCKS, "KV blocks stay", 30)


def storm_of_slow_readers(rig: GatewayRig) -> None:
    stalled = rig.metric("slackwater_http_stalled_total")
    with ExitStack() as open_sockets:
        for _ in range(STORM):
            open_sockets.enter_context(begin(rig))
        wait_until(lambda: rig.metric("slackwater_http_stalled_total") == stalled + STORM, "slow readers stay", 120)


def storm_of_disconnects(rig: GatewayRig) -> None:
    clients = [begin(rig) for _ in range(STORM)]
    for index, client in enumerate(clients):
        if index % 2:  # a reset, not an orderly end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()


@pytest.mark.parametrize("storm", [pytest.param(storm_of_slow_readers, marks=pytest.mark.slow), storm_of_disconnects])
def test_nothing_of_a_storm_is_left(rig: GatewayRig, storm: object) -> None:
    assert callable(storm)
    assert rig.complete().status_code == 200
    wait_clean(rig)
    aborted = rig.metric("slackwater_executor_aborted_total")
    storm(rig)
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total") >= aborted + STORM, "not all are aborted", 90)
    wait_clean(rig)
    resident = rig.resident_bytes("gateway")
    storm(rig)
    wait_until(
        lambda: rig.metric("slackwater_executor_aborted_total") >= aborted + 2 * STORM, "not all are aborted", 90
    )
    wait_clean(rig)
    assert rig.resident_bytes("gateway") - resident < STORM * 100 * 1024
    assert rig.complete().status_code == 200


def test_a_reader_that_is_merely_slow_gets_everything(rig: GatewayRig) -> None:
    """It reads 64 KB, which is what the gateway waits for, within the timeout again and again."""
    stalled = rig.metric("slackwater_http_stalled_total")
    with connect(rig) as client:
        client.sendall(request_bytes(2000))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += client.recv(2048)
    assert answer.count(b"data: ") >= 500 and b"data: [DONE]" in answer
    assert rig.metric("slackwater_http_stalled_total") == stalled


def test_a_large_answer_may_take_longer_than_the_timeout(rig: GatewayRig) -> None:
    """Its client has it over a slow line."""
    stalled = rig.metric("slackwater_http_stalled_total")
    body = json.dumps({"model": MODEL, "input": ["a"] * 500, "encoding_format": "float"}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(rig) as client:
        client.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        first, num_read = client.recv(1024), 0
        length = int(first.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        for number in range(1, 5):
            time.sleep(0.6 * WRITE_TIMEOUT_S)
            while num_read < length * number // 5:
                part = client.recv(64 * 1024)
                assert part, "it is cut off"
                num_read += len(part)
        while part := client.recv(64 * 1024):
            num_read += len(part)
    assert length > 1024**2 and len(first) + num_read > length, "with its headers"
    assert rig.metric("slackwater_http_stalled_total") == stalled


def test_answers_that_are_never_fetched_go_with_their_connection(rig: GatewayRig) -> None:
    """All are complete, and what is left of them in the gateway is less than what an answer waits for."""
    size = len(rig.http.get("/metrics").content)
    stalled = rig.metric("slackwater_http_stalled_total")
    with connect(rig) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * (100 * 1024 // size + 1))
        wait_until(lambda: rig.metric("slackwater_http_stalled_total") == stalled + 1, "the connection stays")
    wait_until(lambda: rig.metric("slackwater_http_connections") <= 2, "connections stay")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_later", [0, 2])
def test_who_sends_requests_ahead_and_leaves_ends_the_one_that_runs(
    rig: GatewayRig, stream: bool, num_later: int
) -> None:
    """``num_later``: of the three, so many are sent when the first one runs."""
    finished = rig.metric("slackwater_finished_requests_total", reason="length")
    with connect(rig) as client:
        client.sendall(request_bytes(MAX_TOKENS, stream) * (3 - num_later))
        wait_until(lambda: rig.metric("slackwater_live_requests") == 1, "it does not run")
        client.sendall(request_bytes(MAX_TOKENS, stream) * num_later)
    wait_until(lambda: rig.metric("slackwater_live_requests") == 0, "it is still live")
    assert rig.metric("slackwater_finished_requests_total", reason="length") == finished
    wait_until(lambda: rig.metric("slackwater_executor_online_running") == 0, "it runs on")
