"""Of the offline-queue and of each executor's id there is one at a time, whatever is started, killed or stopped: real
processes, the sim engine."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest

from shared.bus import Bus
from shared.process.healthcheck import service_health
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.requests import OfflineRequest
from shared.watch.stack_status import ping_all
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

WORK = subjects.of_model(MODEL)

Answer = TypeVar("Answer")

PRESET = ("--preset", "sarathi++")
ENDED_S = 90.0


class Rig(GatewayRig):
    """One stack for all tests. ``queue``, ``executor``: the processes that are at work, by their names here."""

    queue = "queue-0"
    executor = "executor-a"

    def start_standby(self, name: str) -> None:
        self.start_offline_queue(*PRESET, name=name)
        wait_until(lambda: health(self, "offline-queue-standby").startswith("waits: pid"), self.logs)

    def start_executor_0(self, name: str) -> None:
        self.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.1", name=name)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("stack")) as made:
        made.start_offline_queue(*PRESET, name=made.queue)
        made.start_executor_0(made.executor)
        made.start_gateway("--gateway-id", "front")
        made.wait_ready()
        wait_until(lambda: health(made, "offline-queue") == "ok", made.logs)
        yield made


def on_bus(rig: GatewayRig, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        bus = await Bus.connect(rig.nats_url, "test")
        try:
            return await ask(bus)
        finally:
            await bus.close()

    return asyncio.run(run())


def health(rig: GatewayRig, name: str) -> str:
    return asyncio.run(service_health(rig.nats_url, name))


def submit(rig: GatewayRig, num_lines: int, max_tokens: int = 8) -> str:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True}
    return rig.submit_batch(body | {"seed": number} for number in range(num_lines))


def assert_complete(rig: GatewayRig, batch_id: str, num_lines: int) -> None:
    """Every line has one result, and nothing is left of the batch on the bus."""

    def has_ended() -> bool:
        return rig.openai.batches.retrieve(batch_id).status == "completed"

    wait_until(has_ended, rig.logs, ENDED_S)
    output_id = rig.openai.batches.retrieve(batch_id).output_file_id
    assert output_id is not None
    written = [json.loads(line)["custom_id"] for line in rig.openai.files.content(output_id).text.splitlines()]
    assert sorted(written) == sorted(f"line-{number}" for number in range(num_lines))
    wait_until(lambda: not on_bus(rig, lambda bus: stored(bus, batch_id)), rig.logs)


async def stored(bus: Bus, batch_id: str) -> int:
    read = bus.read(subjects.REQUESTS_STREAM, WORK.batch_requests(batch_id), OfflineRequest)
    return len([each async for each in read])


async def first_request(bus: Bus) -> None:
    """Return when one is stored."""
    following = bus.follow(subjects.REQUESTS_STREAM, subjects.ALL_REQUESTS, OfflineRequest)
    while await anext(following) is None:
        pass


def has_logged(rig: GatewayRig, name: str, what: str) -> bool:
    return any(what in json.dumps(event) for event in rig.log_events(name))


def test_a_second_offline_queue_waits_and_goes_on_when_the_first_is_killed(rig: Rig) -> None:
    rig.start_standby("queue-1")
    assert on_bus(rig, ping_all)["offline-queue-standby"].health.startswith("waits: pid")
    assert has_logged(rig, "queue-1", "another offline-queue is at work, this one waits")
    batch_id = submit(rig, 300)
    rig.stop(rig.queue, signal.SIGKILL)
    rig.queue = "queue-1"
    assert_complete(rig, batch_id, 300)
    assert health(rig, "offline-queue") == "ok"
    assert has_logged(rig, rig.queue, "lease taken over")


def test_an_offline_queue_that_ends_in_order_is_followed_at_once(rig: Rig) -> None:
    rig.start_standby("queue-2")
    assert rig.stop(rig.queue) == 0
    rig.queue = "queue-2"
    assert_complete(rig, submit(rig, 3), 3)
    assert not has_logged(rig, rig.queue, "lease taken over")


@pytest.mark.slow
def test_an_offline_queue_that_was_replaced_while_it_stood_still_writes_nothing_more(rig: Rig) -> None:
    """It is stopped while it reads a batch in, and wakes while the other one runs it."""
    rig.start_standby("queue-3")
    batch_id = submit(rig, 6000, max_tokens=2)
    on_bus(rig, first_request)
    rig.signal(rig.queue, signal.SIGSTOP)
    assert rig.openai.batches.retrieve(batch_id).status == "validating"
    wait_until(lambda: has_logged(rig, "queue-3", "lease taken over"), rig.logs)
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "in_progress", rig.logs)
    rig.signal(rig.queue, signal.SIGCONT)
    assert rig.wait(rig.queue) == 1
    assert has_logged(rig, rig.queue, "LeaseLostError")
    rig.queue = "queue-3"
    assert_complete(rig, batch_id, 6000)


def test_the_holder_goes_on_after_a_restart_of_the_bus(rig: Rig) -> None:
    rig.start_standby("queue-4")
    batch_id = submit(rig, 300)
    rig.stop("nats", signal.SIGKILL)
    rig.start_nats()
    rig.wait_ready()
    assert_complete(rig, batch_id, 300)
    assert not has_logged(rig, rig.queue, "LeaseLostError")
    rig.stop("queue-4")


def test_an_executor_id_that_is_in_use_is_refused(rig: Rig) -> None:
    """And the one that has it goes on as before."""
    rig.start_executor_0("executor-b")
    assert rig.wait("executor-b") == 1
    assert has_logged(rig, "executor-b", "executor-0 runs already on this bus (pid")
    assert_complete(rig, submit(rig, 20), 20)


@pytest.mark.slow
def test_an_executor_that_stood_still_ends_where_another_one_has_its_id(rig: Rig) -> None:
    rig.signal(rig.executor, signal.SIGSTOP)
    rig.start_executor_0("executor-c")
    wait_until(lambda: has_logged(rig, "executor-c", "lease taken over"), rig.logs)
    rig.signal(rig.executor, signal.SIGCONT)
    assert rig.wait(rig.executor) == 1
    rig.executor = "executor-c"
    assert_complete(rig, submit(rig, 20), 20)


def test_an_executor_whose_registration_is_gone_is_attached_by_its_heartbeat(rig: Rig) -> None:
    async def forget(bus: Bus) -> None:
        await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).delete("executor-0")

    on_bus(rig, forget)
    wait_until(lambda: has_logged(rig, rig.queue, "executor detached"), rig.logs)
    assert_complete(rig, submit(rig, 20), 20)
    assert rig.complete().status_code == 200


def test_a_gateway_that_comes_back_does_not_answer_for_the_requests_of_the_one_before(rig: Rig) -> None:
    """They have no client any more: the executor ends them."""
    body: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 7000, "ignore_eos": True, "stream": True}
    with contextlib.suppress(httpx.HTTPError), rig.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        rig.stop("gateway", signal.SIGKILL)
    rig.start_gateway("--gateway-id", "front")
    rig.wait_ready()
    assert rig.complete().status_code == 200
    wait_until(lambda: has_logged(rig, rig.executor, "gateway is gone"), rig.logs)
