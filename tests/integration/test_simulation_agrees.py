"""The simulator and the live stack with the sim engine, on the same input, tell the same figures."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from loadgen.backlog import load_backlog
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report import OfflineReport, OnlineReport, Report
from loadgen.scaling import Scaling
from loadgen.traces import read_trace
from services.profiler.simulation.setup import Machine, make_strategy
from services.profiler.simulation.simulation import Simulation
from shared.bus import Bus
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol import subjects
from shared.protocol.messages import LatencyModelRecord
from tests.integration.conftest import LocalStack

TIME_SCALE = 8.0  # steps of 100 ms and more, beside which the live loop's own few milliseconds are small
BUDGET_MS = 320.0
DURATION_S = 60.0
TOLERANCE = 0.05


@dataclass(frozen=True)
class Slowed:
    """A latency model whose steps take ``TIME_SCALE`` times as long, as the sim engine's do."""

    model: RooflineLatencyModel

    def predict_ms(self, features: BatchFeatures) -> float:
        return TIME_SCALE * self.model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return TIME_SCALE * self.model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int) -> float:
        return TIME_SCALE * self.model.prefill_cost_ms(features, num_tokens)

    def max_prefill_tokens(self, features: BatchFeatures, budget_ms: float, limit: int) -> int:
        return self.model.max_prefill_tokens(features, budget_ms / TIME_SCALE, limit)


@pytest.fixture
def workload(tmp_path: Path) -> tuple[Path, Path]:
    """Three chats a second at random times, and summaries without end."""
    rng = random.Random(7)
    trace, lengths = tmp_path / "trace.csv", tmp_path / "lengths.csv"
    rows, now_s = [], 0.0
    while now_s < DURATION_S:
        rows.append(f"{now_s},ChatGPT,{rng.randint(40, 240)},{rng.randint(8, 24)},0,Conversation log")
        now_s += rng.expovariate(3.0)
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    backlog = [f"{rng.randint(200, 500)},{rng.randint(4, 12)}" for _ in range(2000)]
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "\n".join(backlog) + "\n")
    return trace, lengths


def simulate(workload: tuple[Path, Path], planner: LinearLatencyModel) -> Report:
    trace, lengths = workload
    scaling = Scaling(duration_s=DURATION_S)
    strategy = make_strategy("hygen", BUDGET_MS, None)
    setup = Machine().setup(strategy, seed=0)
    roofline = setup.latency
    assert isinstance(roofline, RooflineLatencyModel)
    plan = ReplayPlan(scaling.apply(read_trace(trace)), load_backlog(lengths), scaling)
    slowed = replace(setup, latency=Slowed(roofline), planner=planner)
    simulation = Simulation(plan, slowed, strategy, "sim://test", NoProgress())
    simulation.run()
    return simulation.report(partial=False)


async def fitted(stack: LocalStack) -> LinearLatencyModel:
    """The model that the live stack planned with last."""
    bus = await Bus.connect(json.loads((stack.data_dir / "stack.json").read_text())["nats_url"], "test")
    try:
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        (entry,) = await models.entries()
        assert entry.value is not None
        return LinearLatencyModel(*entry.value.coefficients)
    finally:
        await bus.close()


@pytest.mark.slow
def test_throughput_and_p99_agree(
    make_stack: Callable[..., LocalStack], workload: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_SIM_TIME_SCALE", str(TIME_SCALE))
    stack = make_stack("--engine", "sim", "--budget-ms", str(BUDGET_MS))
    stack.start()
    stack.wait_healthy()
    trace, lengths = (str(path) for path in workload)
    window = ("--duration", str(DURATION_S), "--json", "-", "--no-progress")
    done = stack.run("replay", "--url", stack.url, "--online", trace, "--offline", lengths, *window)
    assert done.returncode == 0, done.stderr
    live = json.loads(done.stdout)
    simulated = simulate(workload, asyncio.run(fitted(stack)))
    assert (live["online"]["errors"], live["offline"]["errors"]) == (0, 0)
    online, offline = simulated.online, simulated.offline
    assert isinstance(online, OnlineReport) and isinstance(offline, OfflineReport)
    assert online.completed == live["online"]["completed"] == online.requests
    figures = {
        "ttft p99": (online.ttft_ms and online.ttft_ms.p99, live["online"]["ttft_ms"]["p99"]),
        "tbt p99": (online.tbt_ms and online.tbt_ms.p99, live["online"]["tbt_ms"]["p99"]),
        "online tokens/s": (online.output_tokens_per_s, live["online"]["output_tokens_per_s"]),
        "offline requests/s": (offline.requests_per_s, live["offline"]["requests_per_s"]),
        "offline tokens/s": (offline.total_tokens_per_s, live["offline"]["total_tokens_per_s"]),
    }
    apart = {name: (ours, theirs) for name, (ours, theirs) in figures.items() if ours is not None}
    print(apart)
    assert len(apart) == len(figures)
    for name, (ours, theirs) in apart.items():
        assert ours == pytest.approx(theirs, rel=TOLERANCE), (name, apart)
