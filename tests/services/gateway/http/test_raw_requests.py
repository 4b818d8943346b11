"""Requests that no client should send, over real sockets: each is answered in words or its connection closed, nothing
is a server error, no traceback is written, and the gateway stays as large as it was."""

import json
import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

from tests.fuzzing.raw_http import all_requests, request, spoiled
from tests.services.gateway.gateway_rig import MODEL, GatewayRig

NUM_AT_ONCE = 64  # of many the server waits a second for more
GROWTH_BYTES = 48 * 1024**2
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
FEW, MANY = 200, 5_000
TWO_BYTES = b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.01")
        made.start_offline_queue()
        made.start_gateway("--header-timeout-s", "1", "--keep-alive-s", "1", "--body-timeout-s", "1")
        made.wait_ready()
        yield made


def answer_to(rig: GatewayRig, data: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", rig.port), timeout=60) as client:
        answer = b""
        with suppress(ConnectionError):  # it was closed before all was sent
            client.sendall(data)
            while piece := client.recv(65536):
                answer += piece
        return answer


def answers_to(rig: GatewayRig, requests: Iterable[bytes]) -> list[bytes]:
    with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
        return list(threads.map(lambda each: answer_to(rig, each), requests))


def assert_well(rig: GatewayRig) -> None:
    assert rig.complete(max_tokens=2).status_code == 200
    assert not [event for event in rig.log_events("gateway") if "exception" in event]
    assert "Traceback" not in rig.logs()


def test_each_is_refused_in_words(rig: GatewayRig) -> None:
    requests = all_requests()
    wrong = {}
    for (name, _), answer in zip(requests.items(), answers_to(rig, requests.values()), strict=True):
        status = int(found[1]) if (found := STATUS.match(answer)) else 0
        body = answer.partition(b"\r\n\r\n")[2]
        if status >= 500 or (status >= 400 and not is_error(body)):
            wrong[name] = answer[:500]
    assert not wrong
    assert_well(rig)


@pytest.mark.parametrize("num_requests", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_bytes_are_a_server_error(rig: GatewayRig, num_requests: int) -> None:
    random = Random(num_requests)
    answers_to(rig, (spoiled(random) for _ in range(FEW)))
    before = rig.resident_bytes("gateway")
    requests = [spoiled(random) for _ in range(num_requests)]
    answers = answers_to(rig, requests)
    failed = [
        (each, answer) for each, answer in zip(requests, answers, strict=True) if re.search(rb"HTTP/1.1 5", answer)
    ]
    assert not failed, failed[0]
    assert_well(rig)
    assert rig.resident_bytes("gateway") - before < GROWTH_BYTES


def test_refused_requests_between_good_ones_on_one_connection(rig: GatewayRig) -> None:
    """All are answered that are whole; one that is no HTTP ends the connection, whatever is not answered yet."""
    good = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    refused = good.replace(b"GET /health", b"POST /v1/completions").replace(b"\r\n\r\n", TWO_BYTES)
    answers = answer_to(rig, (good + refused) * 50 + request("GET", "/health"))
    assert STATUS.findall(answers) == [b"200", b"400"] * 50 + [b"200"]
    assert len(STATUS.findall(answer_to(rig, (good + refused) * 50 + request("BREW", "/health")))) <= 100
    assert_well(rig)


def test_http_1_0_is_answered_without_chunks(rig: GatewayRig) -> None:
    body = json.dumps({"model": MODEL, "prompt": "Once", "max_tokens": 3, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    head, _, events = answer_to(rig, head + body).partition(b"\r\n\r\n")
    assert b"connection: close" in head and b"transfer-encoding" not in head
    lines = [line for line in events.decode().split("\n") if line]
    assert [line[:6] for line in lines] == ["data: "] * len(lines)
    assert lines[-1] == "data: [DONE]"
    assert answer_to(rig, b"GET /health HTTP/1.0\r\n\r\n").endswith(b'\r\n\r\n{"status":"ok"}')
    assert_well(rig)


def test_a_model_that_only_looks_like_the_served_one_is_none(rig: GatewayRig) -> None:
    for name in (MODEL + "\x00", MODEL.upper(), f" {MODEL}", "../" + MODEL):
        assert rig.complete(model=name).status_code == 404


def is_error(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False
