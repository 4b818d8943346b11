"""Web pages that a browser on this machine shows: what is not the gateway's own cannot reach it without a key."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig

KEY = "k" * 32
PAGE, REBOUND, NAMED = "https://evil.example", "evil.example", "box.example"
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 1}
JSON = "application/json"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        made.start_gateway("--api-key", KEY, "--allowed-hosts", f"{NAMED}, other.example")
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def guarded_rig(rig: GatewayRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    """A second gateway, as a container has it: whoever can connect needs the key."""
    with GatewayRig(tmp_path_factory.mktemp("guarded"), rig.nats_url) as made:
        made.start_gateway("--api-key", KEY, "--host", "0.0.0.0")
        made.wait_ready()
        yield made


def complete(rig: GatewayRig, **headers: str) -> httpx.Response:
    return rig.http.post("/v1/completions", json=BODY, headers=headers)


@pytest.mark.parametrize("path", ["/v1/models", "/dashboard/events", "/openapi.json"])
def test_a_page_that_points_its_own_name_here_reads_nothing(rig: GatewayRig, path: str) -> None:
    with rig.http.stream("GET", path, headers={"Host": f"{REBOUND}:{rig.port}"}) as answer:
        assert answer.status_code == 403
        answer.read()
    assert REBOUND in answer.json()["error"]["message"]
    assert "--allowed-hosts" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost.evil.example", "127.0.0.1.evil.example", "[::1", "xn--nothing"])
def test_names_that_look_like_this_machines_are_not(rig: GatewayRig, host: str) -> None:
    assert complete(rig, Host=host).status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost:80", "127.0.0.1", "[::1]:80", "192.0.2.7", NAMED]
)
def test_names_of_its_own_and_addresses_are_served(rig: GatewayRig, host: str) -> None:
    assert complete(rig, Host=host).status_code == 200


def test_who_names_no_host_is_no_browser(rig: GatewayRig) -> None:
    with socket.create_connection(("127.0.0.1", rig.port), timeout=30) as client:
        client.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:1", "http://["])
def test_pages_from_elsewhere_are_refused(rig: GatewayRig, origin: str) -> None:
    refused = rig.metric("slackwater_refused_requests_total", reason="origin")
    answer = complete(rig, Origin=origin)
    assert answer.status_code == 403 and "--cors-origins" in answer.json()["error"]["message"]
    assert rig.http.post("/v1/batches/any/cancel", headers={"Origin": origin}).status_code == 403
    assert rig.metric("slackwater_refused_requests_total", reason="origin") == refused + 2


def test_its_own_page_calls_it(rig: GatewayRig) -> None:
    assert complete(rig, Origin=rig.url).status_code == 200
    assert complete(rig, Host=NAMED, Origin=f"https://{NAMED}").status_code == 200
    assert rig.http.post("/v1/batches/any/cancel", headers={"Origin": rig.url}).status_code == 404


def test_no_page_has_a_key_so_who_has_one_is_no_page(rig: GatewayRig, guarded_rig: GatewayRig) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Host": "gateway.example", "Origin": PAGE}
    assert complete(rig, **headers).status_code == complete(guarded_rig, **headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_what_watches_the_process_uses_any_name(rig: GatewayRig, guarded_rig: GatewayRig, path: str) -> None:
    for each in (rig, guarded_rig):
        assert each.http.get(path, headers={"Host": "gateway:8000"}).status_code == 200


SIMPLE_TYPES = [
    "application/x-www-form-urlencoded",
    "text/plain",
    "multipart/form-data; boundary=b",
    "text/plain;application/json",
]


@pytest.mark.parametrize("content_type", [*SIMPLE_TYPES, ""])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/batches"])
def test_what_a_page_may_send_unasked_is_not_taken_for_json(rig: GatewayRig, path: str, content_type: str) -> None:
    answer = rig.http.post(path, content=b"{}", headers={"Content-Type": content_type} if content_type else {})
    assert answer.status_code == 415
    message = answer.json()["error"]["message"]
    assert content_type in message and f"Content-Type: {JSON}" in message and "curl" in message


@pytest.mark.parametrize("content_type", [JSON, "Application/JSON; charset=utf-8"])
def test_json_is_taken(rig: GatewayRig, content_type: str) -> None:
    answer = rig.http.post("/v1/completions", json=BODY, headers={"Content-Type": content_type})
    assert answer.status_code == 200
