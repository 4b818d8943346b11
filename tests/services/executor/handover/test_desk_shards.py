"""Requests that move between executors whose KV is in several processes each, by NIXL on a real bus: tokens depend on
every slot that is read, in each of the processes."""

import importlib.util
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from services.executor.engines.factory import load_engine
from services.executor.handover.peers import place_of
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.protocol.sampling import FinishReason
from shared.scheduling.placement.role import Role
from shared.text.tokenizer import Tokenizer
from tests.programs import stand_still
from tests.services.executor.engines.shared_slots import SLOT_BYTES, SharedSlotEngine
from tests.services.executor.handover.rig import Client, make_request, running, sim_settings, until
from tests.services.executor.handover.shard_processes import BLOCK_BYTES, ShardProcesses, shard_processes
from tests.services.executor.handover.test_desk import OOCO, Pools, gateway, requests, until_idle

__all__ = ["gateway"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL is not installed")

NUM_BLOCKS = 256
EXECUTORS = ("relaxed", "strict")


@pytest.fixture(params=[(2, 2)])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ShardProcesses]]:
    """Of each executor. Over TCP, as between hosts: who stands still sends nothing."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield {
            name: stack.enter_context(shard_processes(Path(folder) / name, number, NUM_BLOCKS))
            for name, number in zip(EXECUTORS, request.param, strict=True)
        }


class Both(Pools):
    """With the processes behind them."""

    def __init__(self, made: list[ExecutorService], processes: dict[str, ShardProcesses]) -> None:
        super().__init__(*made)
        self.processes = processes

    @property
    def are_connected(self) -> bool:
        return bool(self.relaxed._replica.handovers.pushes) and self.strict._pool.acting is Role.STRICT

    async def until_connected(self) -> None:
        """Each can read from the other."""
        await until(lambda: self.are_connected, 120.0)
        desk = self.strict._pool._desk
        assert desk is not None
        await until(lambda: desk._link.is_connected(place_of(self.relaxed.info)), 120.0)


@pytest.fixture
async def both(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, processes: dict[str, ShardProcesses]
) -> AsyncIterator[Both]:
    async with AsyncExitStack() as stack:
        made = []
        for role in EXECUTORS:
            settings = settings_of(model_folder, role, role)
            engine = slot_engine(settings, processes[role])
            made.append(await stack.enter_async_context(running(nats_url, settings, tokenizer, engine)))
        yield Both(made, processes)


def settings_of(model_folder: Path, executor_id: str, role: str) -> ExecutorSettings:
    size = BLOCK_BYTES // SLOT_BYTES
    return sim_settings(model_folder, executor_id, role, strategy=OOCO, kv_blocks=NUM_BLOCKS, block_size=size)


def slot_engine(settings: ExecutorSettings, processes: ShardProcesses) -> SharedSlotEngine:
    return SharedSlotEngine(load_engine(settings).spec, processes.parts, processes.shards)


async def expected_of(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer, both: Both
) -> dict[str, list[int]]:
    """What one executor alone makes of the requests, in the memory of one of the two, which is wiped after it."""
    settings = settings_of(model_folder, "alone", "mixed")
    async with running(nats_url, settings, tokenizer, slot_engine(settings, both.processes["strict"])):
        await gateway.send("alone", requests())
        await gateway.until_ended(len(requests()))
    outputs = {**gateway.outputs}
    for each in (gateway.outputs, gateway.ended, gateway.said_by):
        each.clear()
    for part in both.processes["strict"].parts:
        part[:] = 0
    return outputs


async def test_requests_move_with_every_part_of_their_kv(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer, both: Both
) -> None:
    expected = await expected_of(gateway, nats_url, model_folder, tokenizer, both)
    await both.until_connected()
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected
    assert {taken.request_id for taken in gateway.taken} == set(expected)
    assert all(said[0] == "relaxed" and said[-1] == "strict" for said in gateway.said_by.values())
    await both.until_idle()


@pytest.mark.parametrize("victim", EXECUTORS)
async def test_a_process_killed_in_the_middle_of_a_move(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer, both: Both, victim: str
) -> None:
    """Whose process it was ends, though it may run nothing. The other goes on with all that it has, with each token
    once, and nothing stays reserved."""
    expected = await expected_of(gateway, nats_url, model_folder, tokenizer, both)
    await both.until_connected()
    giver = both.processes["relaxed"].processes[1]
    stand_still(giver.pid)
    await gateway.send("relaxed", requests())
    desk = both.strict._pool._desk
    assert desk is not None
    await until(lambda: desk._taking.num_under_way)
    both.processes[victim].processes[1].kill()
    lost, left = (both.strict, both.relaxed) if victim == "strict" else (both.relaxed, both.strict)
    await until(lambda: lost._is_lost)
    if left is both.relaxed:
        await gateway.until_ended(len(requests()))
        assert set(gateway.ended.values()) == {FinishReason.LENGTH}
    giver.send_signal(signal.SIGCONT)
    await until_idle(left)
    assert not gateway.taken and not left._is_lost
    assert all(tokens == expected[each][: len(tokens)] for each, tokens in gateway.outputs.items())
    assert all(gateway.outputs[each] == expected[each] for each in gateway.ended)


@pytest.mark.parametrize("processes", [(2, 3)], indirect=True)
async def test_executors_with_other_processes_do_not_meet(
    gateway: Client, both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    """And requests stay where they are."""

    def whys() -> list[str]:
        records = [each for each in caplog.records if each.message == "not connected to an executor"]
        return [f"{each.__dict__['peer']}: {each.__dict__['why']}" for each in records]

    with caplog.at_level(logging.WARNING):
        await until(lambda: len(whys()) >= 2, 120.0)
    assert any(
        "strict: strict has other KV: in 3 processes, " in why and "here in 2 processes" in why for why in whys()
    )
    assert any("relaxed: relaxed has other KV: in 2 processes" in why for why in whys())
    await gateway.send("relaxed", [make_request(0)])
    await gateway.until_ended(1)
    assert not gateway.taken and not both.are_connected
