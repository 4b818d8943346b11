"""``slackwater role``, beside an executor that the test plays, and what ``status`` and ``top`` show of pools."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.status.table import describe
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.handover import SetRole
from shared.scheduling.placement.role import Role
from shared.watch.stack_watch import StackWatch
from tests.services.gateway.gateway_rig import GatewayRig
from tests.services.local.commands.test_top import drawn
from tests.services.profiler.profiling import executor_info


def beat(executor_id: str, role: Role, draining: bool = False, moved: tuple[int, int] = (0, 0)) -> Heartbeat:
    info = replace(executor_info(), executor_id=executor_id, role=role, kv_link="sim")
    given, taken = moved
    counters = ExecutorCounters(handed_over=given, taken_over=taken)
    return Heartbeat(info, counters, draining, 0, 0, 0, 0, 500)


class Executor:
    """Answers with its heartbeat."""

    def __init__(self, info: ExecutorInfo) -> None:
        self.info = info

    async def start(self, bus: Bus) -> None:
        await bus.serve(subjects.role(self.info.executor_id), SetRole, self.set_role)
        await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).put(self.info.executor_id, self.info)
        await bus.flush()

    async def set_role(self, order: SetRole) -> Heartbeat:
        self.info = replace(self.info, role=order.role)
        return Heartbeat(self.info, ExecutorCounters(), False, 0, 0, 0, 0, 500)


async def slackwater(*args: str) -> Result:
    return await asyncio.to_thread(CliRunner(env={"COLUMNS": "250"}).invoke, app, args)


@pytest.fixture
async def executor(bus: Bus) -> Executor:
    made = Executor(replace(executor_info(), executor_id="executor-0"))
    await made.start(bus)
    return made


async def test_an_executor_is_put_into_another_pool(nats_url: str, executor: Executor) -> None:
    said = await slackwater("role", "executor-0", "strict", "--nats", nats_url)
    assert (said.exit_code, said.stdout, executor.info.role) == (0, "executor-0 is strict\n", Role.STRICT), said.output
    as_json = await slackwater("role", "executor-0", "mixed", "--json", "--nats", nats_url)
    assert json.loads(as_json.stdout) == {"executor_id": "executor-0", "role": "mixed"}


async def test_what_is_unknown_is_named_beside_the_known(nats_url: str, executor: Executor) -> None:
    unknown = await slackwater("role", "executor-7", "strict", "--nats", nats_url)
    said = "error: no executor executor-7 answers; registered: executor-0\n"
    assert (unknown.exit_code, unknown.stderr) == (1, said)
    no_role = await slackwater("role", "executor-0", "lazy", "--nats", nats_url)
    assert no_role.exit_code == 2 and "'mixed', 'strict', 'relaxed'" in no_role.stderr
    assert executor.info.role is Role.MIXED


async def test_a_role_is_told_through_a_gateway(nats_url: str, executor: Executor, tmp_path: Path) -> None:
    with GatewayRig(tmp_path, nats_url) as rig:
        rig.start_gateway()
        said = await slackwater("role", "executor-0", "relaxed", "--url", rig.url)
        assert (said.exit_code, said.stdout) == (0, "executor-0 is relaxed\n"), said.output
        assert executor.info.role is Role.RELAXED
        unknown = await slackwater("role", "executor-7", "strict", "--url", rig.url)
        assert unknown.stderr == "error: no executor executor-7 answers; registered: executor-0\n"
        no_role = await asyncio.to_thread(rig.http.post, "/executors/executor-0/role/lazy")
        assert no_role.status_code == 400 and "strict" in no_role.json()["error"]["message"]
    assert executor.info.role is Role.RELAXED


def test_status_shows_pools_where_there_are_some() -> None:
    mixed = describe(beat("executor-0", Role.MIXED))
    assert "(" not in mixed.splitlines()[0] and "moved" not in mixed
    head, *lines = describe(beat("executor-0", Role.STRICT, moved=(3, 40)), Role.STRICT).splitlines()
    assert head.endswith(" (strict)")
    assert "  moved    3 requests to other executors with their KV, 40 from them" in lines
    head, *_ = describe(beat("executor-0", Role.STRICT, draining=True), Role.MIXED).splitlines()
    assert head.endswith(" (strict, acts as mixed) (drained)")


def test_top_shows_pools_and_what_moved() -> None:
    watch = StackWatch()
    watch.on_heartbeat(1.0, beat("executor-0", Role.STRICT))
    assert "executor-0 (strict, acts as mixed)" in drawn(watch, 1.0) and "given/taken" not in drawn(watch, 1.0)
    watch.on_heartbeat(1.0, beat("executor-1", Role.RELAXED, moved=(41, 2)))
    screen = drawn(watch, 1.0)
    assert "executor-0 (strict) " in screen and "executor-1 (relaxed) " in screen
    (line,) = [line for line in screen.splitlines() if "executor-1" in line]
    assert line.split()[-1] == "41/2"
