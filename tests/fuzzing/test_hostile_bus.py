"""Every subject of the bus gets messages of every type, good ones with values that nobody should send, and bytes that
are no message, while a whole stack listens. Every process goes on, says so in one line each, and serves."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest

from services.local.stack.machine import free_port
from shared.bus import Bus
from shared.protocol.services import ServiceStatus
from shared.watch.stack_status import ping_all, set_draining
from tests.fuzzing.addresses import all_subjects, listens_to
from tests.fuzzing.storm import Storm
from tests.services.gateway.gateway_rig import MODEL, READY_S, GatewayRig, wait_until

EXECUTORS = ("executor-0", "executor-1")
SERVICES = ("gateway", "offline-queue", "predictor", "profiler", *EXECUTORS)
NUM_LEASES = 3  # of the executors and the offline-queue
GROWTH_BYTES = 64 * 1024**2  # of a process, from the end of one storm to the end of the next
BODY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}


class MonitoredRig(GatewayRig):
    """Its nats-server tells who listens to what."""

    def __init__(self, folder: Path) -> None:
        self._monitor_port = free_port()
        super().__init__(folder)

    def subscriptions(self) -> dict[str, list[str]]:
        """Of each process by name, without those for answers to itself."""
        url = f"http://127.0.0.1:{self._monitor_port}/connz"
        connections = httpx.get(url, params={"subs": "1"}).json()["connections"]
        return {
            each["name"]: [one for one in each["subscriptions_list"] if not one.startswith("_INBOX")]
            for each in connections
            if each.get("name") in SERVICES
        }

    def _nats_arguments(self) -> list[str]:
        return [*super()._nats_arguments(), "-m", str(self._monitor_port)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MonitoredRig]:
    with MonitoredRig(tmp_path) as made:
        made.start_gateway()
        made.start_executor("executor-0", "--role", "relaxed", "--sim-time-scale", "0.01")
        made.start_executor("executor-1", "--role", "strict", "--sim-time-scale", "0.01")
        made.start_offline_queue()
        made.start_predictor()
        made.start_profiler("--slo", "tbt_mean<=1000ms")
        made.wait_ready()
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("share", "per_seen", "seed"),
    [
        (0.1, 2, 0),
        pytest.param(1.0, 20, 2, marks=pytest.mark.slow),
        *(pytest.param(1.0, 20, each, marks=pytest.mark.campaign) for each in (1, 3)),
    ],
)
async def test_a_stack_goes_on_through_a_storm(rig: MonitoredRig, share: float, per_seen: int, seed: int) -> None:
    bus = await Bus.connect(rig.nats_url, "asks")
    storm = await Storm.connect(rig.nats_url, seed)
    await storm.watch()
    await until_well(bus, rig)
    await until_served(rig)
    await asyncio.to_thread(wait_until, lambda: storm.num_seen("holder_id") == NUM_LEASES, rig.logs)
    await storm.stop_watching()
    heard = [each for own in rig.subscriptions().values() for each in own]
    assert_all_are_covered(heard, all_subjects(storm.ids))
    storms = partial(storm.messages, partial(is_heard, heard)), storm.records
    for make in storms:
        resident: dict[str, int] = {}
        for _ in range(2):
            await storm.send(make(share, per_seen))
            for name in EXECUTORS:  # among what was sent are orders to be drained, which each obeys
                await set_draining(bus, name, False)
            answers = await until_well(bus, rig)
            await until_served(rig)
            print(f"{storm.num_sent} sent, {sum(each.details['messages_failed'] for each in answers.values())} refused")
            before, resident = resident, {name: rig.resident_bytes(name) for name in SERVICES}
        assert all(resident[name] - before[name] < GROWTH_BYTES for name in SERVICES), (before, resident)
    assert all(answers[name].details["messages_failed"] for name in SERVICES)
    assert_logs_are_plain(rig)
    await storm.close()
    await bus.close()


def is_heard(subscriptions: Sequence[str], subject: str) -> bool:
    return any(listens_to(each, subject) for each in subscriptions)


def assert_all_are_covered(subscriptions: Sequence[str], subjects: Sequence[str]) -> None:
    """Somebody sends to every subscription of every service."""
    for subscription in subscriptions:
        assert any(listens_to(subscription, subject) for subject in subjects), subscription


def assert_logs_are_plain(rig: GatewayRig) -> None:
    for name in SERVICES:
        for event in rig.log_events(name):
            assert "exception" not in event, (name, event["exception"])
        assert "Traceback" not in (rig._folder / f"{name}.log").read_text()


async def until_well(bus: Bus, rig: GatewayRig) -> dict[str, ServiceStatus]:
    """Every process answers that it is."""
    ill = dict.fromkeys(SERVICES, "not asked")
    try:
        async with asyncio.timeout(READY_S):
            while ill:
                answers = await ping_all(bus)
                healths = {name: answers[name].health if name in answers else "no answer" for name in SERVICES}
                ill = {name: health for name, health in healths.items() if health != "ok"}
    except TimeoutError:
        pytest.fail(f"not well after {READY_S:g} s: {ill}\n{rig.logs()}")
    return answers


async def until_served(rig: GatewayRig) -> None:
    """Streams of both tiers and a batch come to their ends."""
    for tier in ("default", "flex"):
        await asyncio.to_thread(stream, rig, tier)
    batch_id = await asyncio.to_thread(rig.submit_batch, [BODY] * 3)
    await asyncio.to_thread(wait_until, lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)


def stream(rig: GatewayRig, tier: str) -> None:
    def is_whole() -> bool:
        with rig.http.stream("POST", "/v1/completions", json={**BODY, "stream": True, "service_tier": tier}) as answer:
            return answer.status_code == 200 and list(answer.iter_lines())[-2] == "data: [DONE]"

    wait_until(is_whole, rig.logs)
