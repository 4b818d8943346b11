"""The simulator and the live stack with the sim engine, on the same input, tell the same figures."""

import asyncio
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report.report import Report
from loadgen.workload.backlog import load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace
from services.executor.engines.factory import load_engine
from services.executor.service import executor_info
from services.executor.settings import ExecutorSettings
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.simulation import Simulation
from shared.bus import Bus
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol import subjects
from shared.protocol.budgets import BudgetRecord
from shared.protocol.latency_models import LatencyModelRecord, LinearCoefficients
from shared.scheduling.strategy import Strategy
from tests.services.gateway.gateway_rig import GatewayRig, model_folder

TIME_SCALE = 6.0  # steps of 70 ms and more, beside which the live loop's own few milliseconds are small
BUDGET_MS = 240.0
DURATION_S = 60.0
ONLINE_RATE = 5.0
TOLERANCE = 0.05
STRATEGIES = (
    {"preset": "hygen", "offline_order": "fcfs"},
    {"preset": "hygen", "offline_order": "psm-fair"},
    {"preset": "bros"},
)
PLANNER = (70.0, 0.4, 0.003, 0.0, 0.0, 0.5, 0.5, 0.0)  # both sides plan with it


@dataclass(frozen=True)
class Slowed:
    """A latency model whose steps take ``TIME_SCALE`` times as long, as the sim engine's do."""

    model: RooflineLatencyModel

    def predict_ms(self, features: BatchFeatures) -> float:
        return TIME_SCALE * self.model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return TIME_SCALE * self.model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return TIME_SCALE * self.model.prefill_cost_ms(features, num_tokens, num_computed_tokens)

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        return self.model.max_prefill_tokens(features, num_computed_tokens, budget_ms / TIME_SCALE, limit)


@pytest.fixture
def workload(tmp_path: Path) -> tuple[Path, Path]:
    """Five chats a second at random times, and summaries without end."""
    rng = random.Random(7)
    trace, lengths = tmp_path / "trace.csv", tmp_path / "lengths.csv"
    rows, now_s = [], 0.0
    while now_s < DURATION_S:
        rows.append(f"{now_s},ChatGPT,{rng.randint(40, 240)},{rng.randint(4, 12)},0,Conversation log")
        now_s += rng.expovariate(ONLINE_RATE)
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    backlog = [f"{rng.randint(200, 500)},{rng.randint(4, 12)}" for _ in range(2000)]
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "\n".join(backlog) + "\n")
    return trace, lengths


def simulate(workload: tuple[Path, Path], chosen: dict[str, str]) -> Report:
    trace, lengths = workload
    scaling = Scaling(duration_s=DURATION_S)
    budget = {"budget_ms": BUDGET_MS} if chosen["preset"] == "hygen" else {}
    strategy = Strategy.of(**chosen, **budget)
    setup = Machine().setup(strategy, seed=0)
    roofline = setup.latency
    assert isinstance(roofline, RooflineLatencyModel)
    plan = ReplayPlan(scaling.apply(read_trace(trace)), load_backlog(lengths), scaling)
    slowed = replace(setup, latency=Slowed(roofline), planner=LinearLatencyModel(*PLANNER))
    simulation = Simulation(plan, slowed, "sim://test", NoProgress())
    simulation.run()
    return simulation.report(partial=False)


async def tune(nats_url: str, profile_key: str) -> None:
    """Publish the planner and the budget, as the predictor and the profiler would."""
    bus = await Bus.connect(nats_url, "test")
    try:
        await bus.ensure_streams()
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        await models.put(profile_key, LatencyModelRecord(profile_key, LinearCoefficients(PLANNER), 100, 0.01, 0.0))
        budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        await budgets.put(profile_key, BudgetRecord(profile_key, BUDGET_MS, "fixed"))
    finally:
        await bus.close()


def replay_live(rig: GatewayRig, workload: tuple[Path, Path], chosen: dict[str, str]) -> Report:
    """nats-server, executor, offline-queue and gateway as processes, and the replay command."""
    options = [each for name, value in chosen.items() for each in (f"--{name.replace('_', '-')}", value)]
    settings = ExecutorSettings(model_path=str(model_folder()), engine="sim", sim_time_scale=TIME_SCALE)
    asyncio.run(tune(rig.nats_url, executor_info(settings, load_engine(settings).spec).profile_key))
    rig.start_offline_queue(*options)
    rig.start_executor("executor-0", "--sim-time-scale", str(TIME_SCALE), *options)
    rig.start_gateway()
    rig.wait_ready()
    trace, lengths = (str(path) for path in workload)
    files = ("--url", rig.url, "--online", trace, "--offline", lengths)
    window = ("--duration", str(DURATION_S), "--json", "-", "--no-progress")
    done = subprocess.run([sys.executable, "-m", "loadgen", "replay", *files, *window], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + rig.logs()
    return msgspec.json.decode(done.stdout, type=Report)


def figures(report: Report) -> dict[str, float]:
    """What has to agree."""
    online, offline = report.online, report.offline
    assert online is not None and online.ttft_ms is not None and online.tbt_ms is not None and offline is not None
    assert (online.completed, online.errors, offline.errors) == (online.requests, 0, 0)
    return {
        "ttft p99": online.ttft_ms.p99,
        "tbt p99": online.tbt_ms.p99,
        "online tokens/s": online.output_tokens_per_s,
        "offline requests/s": offline.requests_per_s,
        "offline tokens/s": offline.total_tokens_per_s or 0.0,
    }


@pytest.mark.slow
@pytest.mark.parametrize("chosen", STRATEGIES, ids=lambda chosen: "-".join(chosen.values()))
def test_throughput_and_p99_agree(tmp_path: Path, workload: tuple[Path, Path], chosen: dict[str, str]) -> None:
    with GatewayRig(tmp_path) as rig:
        live = figures(replay_live(rig, workload, chosen))
    simulated = figures(simulate(workload, chosen))
    assert simulated == pytest.approx(live, rel=TOLERANCE), (simulated, live)
