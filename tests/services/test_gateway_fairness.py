"""Fairness by client, from the HTTP request to the executor's online order (vtc, sim engine)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.gateway.client_id import client_id_of
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.messages import ExecutorInfo
from tests.services.gateway_rig import GatewayRig, wait_until

FLOOD = 40


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        options = ("--online-order", "vtc", "--max-num-seqs", "2", "--sim-time-scale", "0.1")
        made.start_executor("executor-0", *options)
        made.start_gateway()
        made.wait_ready()
        yield made


class Clients:
    """Send requests and remember in which order they end."""

    def __init__(self, rig: GatewayRig) -> None:
        self._rig = rig
        self._lock = threading.Lock()
        self.ended: list[str] = []

    def complete(self, name: str, key: str | None, user: str | None, max_tokens: int) -> None:
        body = {
            "model": self._rig.openai.models.list().data[0].id,
            "prompt": [7] * 20,
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        response = self._rig.http.post("/v1/completions", json=body | ({"user": user} if user else {}), headers=headers)
        assert response.status_code == 200, response.text
        with self._lock:
            self.ended.append(name)


def test_a_flood_does_not_delay_light_clients(rig: GatewayRig) -> None:
    clients = Clients(rig)
    with ThreadPoolExecutor(FLOOD) as pool:
        flood = [pool.submit(clients.complete, f"flood-{n}", "flood", None, 150) for n in range(FLOOD)]
        wait_until(lambda: rig.metric("slackwater_executor_online_waiting") >= FLOOD // 2, "the flood never waited")
        clients.complete("by-key", "light", None, 5)
        clients.complete("by-user", None, "light", 5)
        for each in flood:
            each.result()
    assert len(clients.ended) == FLOOD + 2
    assert clients.ended.index("by-key") < clients.ended.index("by-user") < FLOOD - 8


async def test_schedulers_are_told_the_order(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with GatewayRig(tmp_path_factory.mktemp("gateway"), nats_url) as rig:
        rig.start_executor("executor-0", "--online-order", "vtc", "--vtc-weight-output", "3")
        bus = await Bus.connect(nats_url, "test")
        executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        async for entry in executors.watch():
            if entry is not None and entry.value is not None:
                info = entry.value
                break
        await bus.close()
    assert (info.online_order, info.vtc_weight_input, info.vtc_weight_output) == ("vtc", 1.0, 3.0)


def test_a_client_is_its_key_or_its_user_and_never_in_clear() -> None:
    key = client_id_of("Bearer sk-secret", "me")
    assert key == client_id_of("Bearer sk-secret", None) != client_id_of("Bearer sk-other", None)
    assert "secret" not in key
    user = client_id_of(None, "sk-secret")
    assert user == client_id_of("Bearer ", "sk-secret") != key
    assert client_id_of(None, None) == client_id_of("", "") == ""
