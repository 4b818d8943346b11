"""SLOs on a stack of real processes with the sim engine: searched for, held, corrected, or said to be out of reach."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadgen.report.slo import parse_slo
from services.executor.engines.factory import load_engine
from services.executor.service import executor_info
from services.executor.settings import ExecutorSettings
from services.profiler.sweep.sweep_record import SweepFiles, SweepRecord
from shared.bus import Bus
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.profiling.budgets import BudgetRecord, SloReport, SloState, SloStatus
from shared.protocol.profiling.latency_models import LatencyModelRecord, model_record
from shared.protocol.profiling.measurements import MeasuredShape
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.protocol.profiling.slo_profile import Knob, SloProfileRecord, slo_profile_key
from shared.protocol.steps import StepStarted
from shared.scheduling.request import Kind
from tests.services.gateway.gateway_rig import GatewayRig, model_folder
from tests.services.profiler.profiling import until
from tests.shared.latency.shapes import make_shape

pytestmark = pytest.mark.slow

TIME_SCALE = 4.0  # steps of 50 ms and more: little work for the test's own machine
RATE = 6.0
LOAD_S = 120.0
SEARCH_SOON = ("--slo-min-requests", "40", "--slo-min-s", "5", "--slo-check-s", "5")


def fitted(scale: float) -> LinearLatencyModel:
    """Eq. 1 through a few points of what the sim engine's steps take at this time scale."""
    roofline = RooflineLatencyModel.of(architecture_named("llama2-7b"), device_named("a100-40g"), 1)

    def step_ms(prefill: int, *contexts: int) -> float:
        features = BatchFeatures()
        if prefill:
            features.add_scheduled(prefill, 0)
        for context in contexts:
            features.add_decode(context)
        return scale * roofline.predict_ms(features)

    base, full = step_ms(0, 1), step_ms(512)
    kv = max(0.0, (step_ms(0, 2000) - base) / 2000)
    return LinearLatencyModel(
        base, max(0.0, full - base) / 512, kv, 0.0, 0.0, 0.0, max(0.0, step_ms(0, *[1] * 9) - base) / 8
    )


@dataclass
class SloStack:
    """A stack whose processes run, but for the load on it."""

    rig: GatewayRig
    bus: Bus
    folder: Path
    info: ExecutorInfo
    served: list[OnlineServed]
    beats: list[Heartbeat]

    async def budget(self) -> BudgetRecord:
        budgets = await self.bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        budget = (await budgets.get(self.info.profile_key)).value
        assert budget is not None
        return budget

    async def record(self, slo: str) -> SloProfileRecord:
        profiles = await self.bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        record = (await profiles.get(slo_profile_key(self.info.profile_key, [slo], Knob.BUDGET_MS))).value
        assert record is not None
        return record

    async def status(self) -> SloStatus:
        (status,) = (await self.bus.request(subjects.SLO_STATUS, {}, SloReport)).executors
        return status

    async def is_in(self, state: SloState) -> bool:
        return (await self.status()).state is state

    async def measure(self, slo: str, reports: int) -> tuple[float, int]:
        """The SLO's figure over the next reports, and in how many steps offline work ran meanwhile."""
        first, beats = len(self.served), len(self.beats)
        await until(lambda: len(self.served) >= first + reports, timeout_s=60.0)
        latencies = OnlineLatencies()
        for served in self.served[first : first + reports]:
            latencies.merge(served.latencies)
        value_ms = latencies.value_ms(parse_slo(slo))
        assert value_ms is not None
        return value_ms, self.beats[-1].counters.steps_offline - self.beats[beats].counters.steps_offline

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Chats at random times beside summaries without end."""
        rng, now_s, rows = random.Random(7), 0.0, []
        while now_s < LOAD_S:
            rows.append(f"{now_s},m,{rng.randint(40, 240)},{rng.randint(8, 16)},0,Log")
            now_s += rng.expovariate(RATE)
        trace, lengths = self.folder / "trace.csv", self.folder / "lengths.csv"
        head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        trace.write_text(head + "\n".join(rows) + "\n")
        lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "300,12\n" * 1500)
        files = ("--url", self.rig.url, "--online", str(trace), "--offline", str(lengths))
        command = [sys.executable, "-m", "loadgen", "replay", *files, "--duration", str(LOAD_S), "--no-progress"]
        with (self.folder / "replay.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def slo_stack(folder: Path, slo: str, model_scale: float) -> AsyncIterator[SloStack]:
    """``model_scale``: what the published latency model takes the time scale for."""
    settings = ExecutorSettings(model_path=str(model_folder()), engine="sim", sim_time_scale=TIME_SCALE)
    info = executor_info(settings, load_engine(settings).spec)
    measured = [MeasuredShape(make_shape([64]), [50.0])]
    SweepFiles(folder / "profiles").store(SweepRecord.of(info, measured, 0.0))  # there is nothing to sweep
    with GatewayRig(folder) as rig:
        bus = await Bus.connect(rig.nats_url, "test")
        await bus.ensure_streams()
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        record = LatencyModelRecord(info.profile_key, model_record(fitted(model_scale)), 100, 0.01, 0.0)
        await models.put(info.profile_key, record)
        stack = SloStack(rig, bus, folder, info, [], [])

        async def on_served(served: OnlineServed) -> None:
            stack.served.append(served)

        async def on_heartbeat(beat: Heartbeat) -> None:
            stack.beats.append(beat)

        await bus.subscribe(subjects.ONLINE_SERVED, OnlineServed, on_served)
        await bus.subscribe(subjects.HEARTBEATS, Heartbeat, on_heartbeat)
        rig.start_profiler("--slo", slo, *SEARCH_SOON)
        rig.start_offline_queue()
        rig.start_executor("executor-0", "--sim-time-scale", str(TIME_SCALE))
        rig.start_gateway()
        await asyncio.to_thread(rig.wait_ready)
        try:
            yield stack
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{await stack.status()}\n{rig.logs()}") from error
        finally:
            await bus.close()


async def test_an_slo_is_searched_for_and_held_with_offline_work_running(tmp_path: Path) -> None:
    slo = "tbt_mean<=110ms"
    async with slo_stack(tmp_path, slo, TIME_SCALE) as stack:
        with stack.load():
            await until(lambda: stack.is_in(SloState.PROFILED), timeout_s=60.0)
            budget, record = await stack.budget(), await stack.record(slo)
            assert record.value is not None and record.why == "first" and len(record.trials) > 3
            assert budget.source in ("slo", "feedback")
            assert record.workload.source == "recorded" and record.workload.offline == "backlog"
            value_ms, steps_offline = await stack.measure(slo, reports=6)
            assert value_ms <= 1.02 * 110 and steps_offline > 0
            (verdict,) = (await stack.status()).measured
            assert (verdict.expr, verdict.bound_ms) == (slo, 110.0) and verdict.value_ms is not None


@pytest.mark.slow
@pytest.mark.timed
async def test_a_machine_slower_than_its_model_is_corrected(tmp_path: Path) -> None:
    slo = "tbt_mean<=110ms"
    async with slo_stack(tmp_path, slo, TIME_SCALE / 1.4) as stack:
        with stack.load():

            async def is_cut() -> bool:
                budget = await stack.budget()
                return budget.source == "feedback" and budget.latency_budget_ms < 95.0

            await until(lambda: stack.is_in(SloState.PROFILED), timeout_s=60.0)
            await until(is_cut, timeout_s=60.0)
            value_ms, steps_offline = await stack.measure(slo, reports=6)
            assert value_ms <= 1.05 * 110 and steps_offline > 0


@pytest.mark.slow
async def test_an_slo_out_of_reach_lets_no_offline_work_in_beside_online_and_is_said(tmp_path: Path) -> None:
    slo = "tbt_p50<=10ms"
    async with slo_stack(tmp_path, slo, TIME_SCALE) as stack:
        with stack.load():
            await until(lambda: stack.is_in(SloState.UNREACHABLE), timeout_s=60.0)
            assert await stack.budget() == BudgetRecord(stack.info.profile_key, 0.0, "slo")
            await stack.measure(slo, reports=2)
            mixed, alone = 0, asyncio.Event()

            async def on_step(message: StepStarted) -> None:
                nonlocal mixed
                kinds = {entry.kind for entry in message.entries}
                mixed += len(kinds) > 1
                if kinds == {Kind.OFFLINE}:
                    alone.set()

            await stack.bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
            await stack.measure(slo, reports=3)
            assert mixed == 0
            status = await stack.status()
            assert "not kept even without offline work: tbt_p50<=10ms (at best" in status.note
            assert status.budget_ms == 0.0 and not status.measured[0].met
        await asyncio.wait_for(alone.wait(), 30)
