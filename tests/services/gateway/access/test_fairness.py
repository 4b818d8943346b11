"""Fairness by client, from the HTTP request to the executor's online order (vtc, sim engine)."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.gateway.api.intake import client_id_of
from services.local.stack.keys import open_keys
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord, KeyTerms, hash_api_key
from shared.protocol.executors import ExecutorInfo
from shared.scheduling.strategy import Strategy
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

FLOOD = 40


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        time_scale = getattr(request, "param", "0.1")
        options = ("--online-order", "vtc", "--max-num-seqs", "2", "--sim-time-scale", time_scale)
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


@pytest.mark.parametrize("rig", ["1"], indirect=True)
async def test_a_key_of_weight_three_is_served_three_times_as_much(rig: GatewayRig) -> None:
    async with open_keys(Path(), BusAddress(rig.nats_url)) as keys:
        light, heavy = await keys.create("light"), await keys.create("heavy", KeyTerms(weight=3.0))
    clients = Clients(rig)
    with ThreadPoolExecutor(50) as pool:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with ExitStack() as first:
            for _ in range(2):
                first.enter_context(rig.http.stream("POST", "/v1/completions", json=body))
            wait_until(lambda: rig.metric("slackwater_executor_online_running") == 2, "the first do not run")
            rest = [pool.submit(clients.complete, "light", light, None, 20) for _ in range(24)]
            rest += [pool.submit(clients.complete, "heavy", heavy, None, 20) for _ in range(24)]
            wait_until(lambda: rig.metric("slackwater_executor_online_waiting") == 48, "not all wait", 60)
        for each in rest:
            each.result()
    assert 20 <= clients.ended[:30].count("heavy") <= 24  # 22.5 of 30 at three to one
    assert sorted(clients.ended) == ["heavy"] * 24 + ["light"] * 24


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
    assert info.strategy == Strategy.of("hygen", online_order="vtc", vtc_weight_output=3.0)


def test_a_client_is_its_key_or_its_user_and_never_in_clear() -> None:
    key = client_id_of(None, "Bearer sk-secret", "me")
    assert key == client_id_of(None, "Bearer sk-secret", None) != client_id_of(None, "Bearer sk-other", None)
    assert "secret" not in key
    user = client_id_of(None, None, "sk-secret")
    assert user == client_id_of(None, "Bearer ", "sk-secret") != key
    assert client_id_of(None, None, None) == client_id_of(None, "", "") == ""
    known = ApiKeyRecord("me", hash_api_key("sk-secret"), "cret", 0)
    assert client_id_of(known, "Bearer sk-secret", None) not in (key, user, client_id_of(None, None, "me"))
