"""The simulator: everything ends once, the same seed tells the same, and offline work without a budget is none."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report.report import Report
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import token_id_prompts
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.local.cli import app
from services.profiler.simulation.encoding import PromptEncoder
from services.profiler.simulation.requests import Arrivals, Backlog, PreparedBacklog
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.simulation import Simulation
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from shared.latency.linear import LinearLatencyModel
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.steps import StepPlan
from shared.replica.foresight import Foresight
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup
from shared.simulation.system import VirtualSystem
from tests.shared.replica.factories import KV_STRATEGIES

DURATION_S = 20.0
RECORD = LatencyModelRecord("key", LinearCoefficients((10.0, 0.05, 0.0004, 0.0, 0.0, 0.1, 0.1, 0.0)), 100, 0.01, 0.0)


def make_requests(seed: int, count: int = 60, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Some share their beginnings."""
    rng = random.Random(seed)
    times = sorted(rng.uniform(0, duration_s) for _ in range(count))
    return [
        TraceRequest(time_s, rng.randint(1, 900), rng.randint(1, 80), (rng.randint(0, 5),) * rng.randint(0, 1), 128)
        for time_s in times
    ]


def make_prompts(seed: int, count: int = 80) -> list[OfflinePrompt]:
    """Lengths, and texts that share a preamble."""
    rng = random.Random(seed)
    lengths = [OfflinePrompt(rng.randint(1, 60), num_prompt_tokens=rng.randint(1, 1500)) for _ in range(count)]
    preamble = "Answer the question in one word. " * 30
    return lengths + [OfflinePrompt(1, text=f"{preamble}Question {number}") for number in range(count // 4)]


def make_plan(requests: Sequence[TraceRequest], prompts: Sequence[OfflinePrompt], **options: bool) -> ReplayPlan:
    return ReplayPlan(requests, prompts, Scaling(duration_s=DURATION_S), model="llama2-7b", **options)


def run(
    plan: ReplayPlan,
    preset: str,
    budget_ms: float | None = None,
    seed: int = 0,
    kv: dict[str, str] | None = None,
    **machine: float | str | None,
) -> tuple[Simulation, Report]:
    budget = {} if budget_ms is None else {"budget_ms": budget_ms}
    setup = replace(Machine(), **machine).setup(Strategy.of(preset, **budget, **(kv or {})), seed)  # type: ignore[arg-type]
    simulation = Simulation(plan, setup, "sim://test", NoProgress())
    simulation.run()
    return simulation, msgspec.structs.replace(
        simulation.report(False), run=msgspec.structs.replace(simulation.report(False).run, date="")
    )


@pytest.mark.parametrize(
    ("preset", "budget_ms"),
    [("hygen", 40.0), ("sarathi++", None), ("bros", None), ("round-robin", None), ("fcfs", None), ("echo", None)],
)
@pytest.mark.parametrize("kv_blocks", [None, 180])
def test_every_request_ends_once_and_tokens_add_up(preset: str, budget_ms: float | None, kv_blocks: int | None) -> None:
    requests, prompts = make_requests(1), make_prompts(1)
    simulation, report = run(make_plan(requests, prompts, drain=True), preset, budget_ms, kv_blocks=kv_blocks)
    phase = simulation.phases["replay"]
    replica = phase.executor.replica
    totals = replica.totals
    assert (totals.finished_online, totals.finished_offline) == (len(requests), len(prompts))
    assert totals.online_tokens == sum(request.num_output_tokens for request in requests)
    assert totals.offline_tokens == sum(prompt.max_tokens for prompt in prompts)
    assert [len(record.token_times_s) for record in phase.records] == [r.num_output_tokens for r in requests]
    assert not replica.has_work and replica.pool.num_free == replica.limits.num_blocks
    replica.pool.check_integrity()
    assert totals.cached_tokens > 0
    assert (totals.preemptions + totals.pauses > 0) == (kv_blocks is not None)
    assert report.online is not None and report.online.completed == len(requests)


@pytest.mark.parametrize("host_kv_slots", [None, 200])
def test_with_shared_blocks_every_request_ends_once_too(host_kv_slots: int | None) -> None:
    requests, prompts = make_requests(1), make_prompts(1)
    pressed = {"kv_blocks": 180, "host_kv_slots": host_kv_slots, "kv": {"kv_sharing": "bidirectional"}}
    simulation, report = run(make_plan(requests, prompts, drain=True), "hygen", 40.0, **pressed)
    replica = simulation.phases["replay"].executor.replica
    totals = replica.totals
    assert (totals.finished_online, totals.finished_offline) == (len(requests), len(prompts))
    assert totals.offline_tokens == sum(prompt.max_tokens for prompt in prompts)
    assert not replica.has_work and replica.pool.num_free == replica.limits.num_blocks
    replica.pool.check_integrity()
    assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots) > 0
    assert (totals.restored_slots == totals.checkpointed_slots) == (host_kv_slots is None)
    assert report.online is not None and report.online.completed == len(requests)


def test_a_device_that_overlaps_is_quicker_and_says_so() -> None:
    plan = make_plan([], make_prompts(1), drain=True)
    (added, _), (overlapped, _) = (run(plan, "fcfs", overlaps=overlaps) for overlaps in (False, True))
    phases = [simulation.phases["replay"] for simulation in (added, overlapped)]
    assert [phase.num_offline_finished for phase in phases] == [len(plan.prompts)] * 2
    assert phases[0].busy_s / 1.2 < phases[1].busy_s < phases[0].busy_s
    strategy, overlapping = Strategy.of("fcfs"), Machine(overlaps=True)
    assert "overlaps=yes" in overlapping.url(strategy) and "overlaps" not in Machine().url(strategy)
    with pytest.raises(ValueError, match="leave --overlap or --step-model out"):
        replace(overlapping, step_model=Path("fitted.json")).setup(strategy, 0)


def test_an_idle_budget_uses_the_time_without_online_requests() -> None:
    model = LinearLatencyModel(10.0, 0.1, 0.0, 0.0, 0.0, 0.1, 0.5)  # most of a step under the latency budget is fixed
    requests = [TraceRequest(5.0 * number, 400, 20) for number in range(4)]
    plan = make_plan(requests, [OfflinePrompt(20, num_prompt_tokens=100)] * 2000)
    finished, tbt_ms = [], []
    for idle_budget_ms in (0.0, 100.0):
        strategy = Strategy.of("hygen", budget_ms=12.0, idle_budget_ms=idle_budget_ms)
        setup = replace(Machine().setup(strategy, 0), planner=model, latency=model)
        simulation = Simulation(plan, setup, "sim://test", NoProgress())
        simulation.run()
        finished.append(simulation.phases["replay"].executor.replica.totals.offline_tokens)
        online = simulation.report(partial=False).online
        assert online is not None and online.tbt_ms is not None
        tbt_ms.append(online.tbt_ms.mean)
    assert finished[1] > 1.5 * finished[0]
    assert tbt_ms[1] == pytest.approx(tbt_ms[0], rel=0.05), "no token waits for it"


def test_a_step_takes_as_long_as_its_copies() -> None:
    plan = make_plan(make_requests(1), make_prompts(1), drain=True)
    strategy = Strategy.of("hygen", budget_ms=40.0, kv_sharing="bidirectional")
    setup = Machine(kv_blocks=180).setup(strategy, 0)
    busy_s = []
    for swap_ms in (0.0, setup.spec.swap_ms_per_slot, 1000.0):
        spec = msgspec.structs.replace(setup.spec, swap_ms_per_slot=swap_ms)
        simulation = Simulation(plan, replace(setup, spec=spec), "sim://test", NoProgress())
        simulation.run()
        busy_s.append(simulation.phases["replay"].now_s)
    assert abs(busy_s[1] - busy_s[0]) < 0.1 * busy_s[0], "hidden behind the execution on a named GPU"
    assert busy_s[2] > 2 * busy_s[0]


def test_times_run_forwards_and_start_after_arrival() -> None:
    requests = make_requests(2)
    simulation, _ = run(make_plan(requests, make_prompts(2)), "hygen", 40.0, noise=0.05)
    records = simulation.phases["replay"].records
    assert len(records) == len(requests)
    for record in records:
        assert record.due_s < record.token_times_s[0]
        assert record.token_times_s == sorted(set(record.token_times_s))
        assert record.finished_s == record.token_times_s[-1]


def test_the_same_seed_tells_the_same() -> None:
    plan = make_plan(make_requests(3), make_prompts(3), baseline=True)
    first, again, other = (run(plan, "hygen", 40.0, seed, noise=0.05)[1] for seed in (1, 1, 2))
    assert first == again
    assert first.online is not None and other.online is not None and first.online.tbt_ms != other.online.tbt_ms


@pytest.mark.parametrize("interrupts", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_without_a_budget_online_tokens_come_as_if_alone_but_for_a_tolerance(interrupts: bool, noise: float) -> None:
    plan = make_plan(make_requests(4), make_prompts(4, 400), baseline=True)
    simulation, report = run(plan, "hygen", noise=noise, interrupts=interrupts)
    totals = simulation.phases["replay"].executor.replica.totals
    assert report.interference is not None and report.offline is not None
    assert report.interference.tbt_ms.mean is not None and report.interference.tbt_ms.mean < 1.08
    assert report.offline.completed > 10
    assert (totals.steps_interrupted > 0) == interrupts
    assert 0.98 < totals.online_s / totals.online_alone_s < 1.08


def test_a_step_of_offline_work_alone_stops_for_an_online_request() -> None:
    requests = [TraceRequest(1.0 + number, 64, 2) for number in range(8)]
    plan = make_plan(requests, [OfflinePrompt(64, num_prompt_tokens=2000)] * 50)
    ttft_ms = []
    for interrupts in (True, False):
        _, report = run(plan, "hygen", interrupts=interrupts, max_num_batched_tokens=4096)
        assert report.online is not None and report.online.ttft_ms is not None and report.offline is not None
        assert report.offline.completed == 50
        ttft_ms.append(report.online.ttft_ms.p99)
    assert ttft_ms[0] < 0.8 * ttft_ms[1]


def test_offline_work_goes_on_where_every_step_of_it_would_be_interrupted() -> None:
    requests = [TraceRequest(0.01 * number, 1, 1) for number in range(1500)]
    _, report = run(make_plan(requests, [OfflinePrompt(4, num_prompt_tokens=400)] * 20), "hygen", interrupts=True)
    assert report.offline is not None and report.offline.completed > 5


def test_a_budget_bounds_what_offline_work_adds() -> None:
    plan = make_plan(make_requests(5), make_prompts(5, 400), baseline=True)
    _, tight = run(plan, "hygen", 20.0)
    _, wide = run(plan, "sarathi++")
    assert tight.interference is not None and wide.interference is not None
    assert tight.interference.tbt_ms.mean is not None and wide.interference.tbt_ms.mean is not None
    assert 1.0 <= tight.interference.tbt_ms.mean < wide.interference.tbt_ms.mean
    assert tight.offline is not None and wide.offline is not None
    assert 0 < tight.offline.completed < wide.offline.completed
    assert tight.baseline is not None and 0 < (tight.baseline.idle_share or 0) < 1
    assert tight.harvest is not None and tight.harvest > 0


def run_phase(
    setup: ExecutorSetup,
    requests: Sequence[TraceRequest],
    with_backlog: bool = True,
    duration_s: float = DURATION_S,
) -> VirtualPhase:
    maker = token_id_prompts(None, None, "test")
    backlog = Backlog(PreparedBacklog(make_prompts(6), PromptEncoder(None), maker, 4096)) if with_backlog else None
    make_system = partial(VirtualSystem, [setup], FairShare(FcfsOrder()))
    phase = VirtualPhase(make_system, Arrivals(requests, maker), backlog, duration_s)
    phase.run()
    return phase


def plans_kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each plan that comes from now on, whether all was as it foresaw."""
    kept: list[bool] = []
    came_true = Foresight.came_true

    def noted(foresight: Foresight, plan: StepPlan, *asked: Any) -> bool:
        kept.append(came_true(foresight, plan, *asked))
        return kept[-1]

    monkeypatch.setattr(Foresight, "came_true", noted)
    return kept


def check_reconciled(
    setup: ExecutorSetup, num_online: int, duration_s: float, monkeypatch: pytest.MonkeyPatch
) -> VirtualPhase:
    """Where every plan is reconciled, the same comes of it; returns what came of the plans that were kept."""
    requests = make_requests(6, num_online, duration_s)
    kept = plans_kept(monkeypatch)
    ours = run_phase(setup, requests, duration_s=duration_s)
    assert any(kept)
    monkeypatch.setattr(Foresight, "came_true", lambda *_: False)
    theirs = run_phase(setup, requests, duration_s=duration_s)
    assert ours.records == theirs.records
    assert ours.executor.replica.totals == theirs.executor.replica.totals
    return ours


def test_an_order_knows_what_lengths_begin_with_and_the_cache_finds_it() -> None:
    prompts = [OfflinePrompt(4, num_prompt_tokens=400, block_ids=(index % 2,), block_tokens=320) for index in range(12)]
    prepared = PreparedBacklog(prompts, PromptEncoder(None), token_id_prompts(None, None, "test"), 4096)
    first, other, same = (prepared.prompts[index].packed for index in range(3))
    assert len(first) == len(pack_tokens(prepared.token_ids(0))) and first == pack_tokens(prepared.token_ids(0))
    shared = len(pack_tokens([0] * 320))
    assert first[:shared] == same[:shared] != other[:shared] and first != same
    simulation, _ = run(make_plan([], prompts), "sarathi++")
    (phase,) = simulation.phases.values()
    assert phase.executor.replica.totals.cached_tokens >= 320 * (12 - 2 - 2)
    assert phase.num_offline_tokens == 12 * 404


@pytest.mark.parametrize(
    ("preset", "kv"),
    [
        (preset, kv)
        for preset in ("hygen", "echo", "ooco", "round-robin")
        for kv, strategy in KV_STRATEGIES.items()
        if strategy.get("kv_sharing") != "bidirectional"
    ],
)
@pytest.mark.parametrize("kv_blocks", [None, 180])
def test_a_plan_that_came_true_is_what_reconciling_it_gives(
    kv_blocks: int | None, preset: str, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"budget_ms": 40.0} if preset in ("hygen", "ooco") else {}
    setup = Machine(kv_blocks=kv_blocks).setup(Strategy.of(preset, **budget, **KV_STRATEGIES[kv]), 0)
    check_reconciled(setup, 20, 5.0, monkeypatch)


@pytest.mark.parametrize(("preset", "kv"), [("fcfs", "lru"), ("hygen", "bidirectional")])
def test_no_plan_is_kept_where_reconciling_may_change_one_that_came_true(
    preset: str, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an offline request may hold up online ones, and where requests are paused."""
    kept = plans_kept(monkeypatch)
    setup = Machine(kv_blocks=180).setup(Strategy.of(preset, **KV_STRATEGIES[kv]), 0)
    run_phase(setup, make_requests(6, 20, 5.0), duration_s=5.0)
    assert kept and not any(kept)


def test_a_plan_that_came_true_is_what_reconciling_it_gives_beside_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Strategy.of("hygen", budget_ms=40.0, kv_eviction="task-aware", kv_reserve="burst", reserve_window_s=5.0)
    setup = Machine(kv_blocks=400).setup(strategy, 0)
    ours = check_reconciled(setup, 60, DURATION_S, monkeypatch)
    assert ours.executor.replica._reserve.num_blocks(0) > 0 < ours.num_offline_finished


@pytest.mark.parametrize("preset", ["hygen", "echo", "round-robin"])
@pytest.mark.parametrize("kv_blocks", [180, 400])
def test_a_plan_that_came_true_is_what_reconciling_it_gives_where_many_wait(
    kv_blocks: int, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others come behind them, and prompts begin with a part."""
    budget = {"budget_ms": 40.0} if preset == "hygen" else {}
    setup = Machine(kv_blocks=kv_blocks, max_num_batched_tokens=128).setup(Strategy.of(preset, **budget), 0)
    check_reconciled(setup, 120, 6.0, monkeypatch)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.5, 1.0), (0.1, 0.0, 0.0)])
def test_a_packing_that_goes_by_the_time_has_plans_kept_for_just_that_time(
    noise: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that are all there from the start. With noise no step ends when it was foreseen."""
    kept = plans_kept(monkeypatch)
    setup = Machine(noise=noise).setup(Strategy.of("echo"), 0)
    phase = run_phase(setup, [TraceRequest(0.0, 100 + number, 40) for number in range(12)])
    assert phase.num_online_finished == 12 and len(kept) > 40
    assert least <= sum(kept[10:]) / len(kept[10:]) <= most


def test_an_answer_that_ends_by_itself_is_not_known_beforehand() -> None:
    known = OfflinePrompt(30, num_prompt_tokens=100)
    prompts = [
        known,
        replace(known, asked_tokens=500),
        replace(known, asked_tokens=10_000),
        replace(known, asked_tokens=3),
    ]
    prepared = PreparedBacklog(prompts, PromptEncoder(None), token_id_prompts(None, None, "test"), 4096)
    waiting = [request for request, _ in Backlog(prepared).begin()]
    assert [request.max_total_tokens for request in waiting] == [130, 600, 4096, 130]
    assert [request.ends_at_limit for request in waiting] == [True, False, False, False]
    simulation, _ = run(make_plan([], prompts), "fcfs")
    assert simulation.phases["replay"].executor.replica.totals.offline_tokens == 4 * 30


def test_a_fixed_offline_rate_is_kept() -> None:
    setup = Machine().setup(Strategy.of("hygen-star", offline_qps=2.0), 0)
    phase = run_phase(setup, make_requests(6))
    assert 0.9 * 2.0 * DURATION_S - 2 <= phase.num_offline_finished <= 2.0 * phase.now_s + 1


def test_a_request_that_cannot_run_is_an_error() -> None:
    setup = Machine(kv_blocks=20).setup(Strategy.of("online-only"), 0)
    phase = run_phase(setup, [TraceRequest(0.0, 1000, 10), TraceRequest(1.0, 10, 10)], with_backlog=False)
    assert [record.failed for record in phase.records] == [True, False]
    assert "do not fit the KV cache of 320 tokens" in (phase.records[0].error or "")


def test_texts_that_begin_alike_share_their_tokens() -> None:
    encoder = PromptEncoder(None)
    first, second = (encoder.token_ids(OfflinePrompt(1, text="A common beginning, " * 4 + end)) for end in ("x", "y"))
    assert first is not None and second is not None
    assert first[:20] == second[:20] and first[20:] != second[20:]
    messages = ({"role": "user", "content": "hello"},)
    assert encoder.token_ids(OfflinePrompt(1, messages=messages)) == encoder.token_ids(
        OfflinePrompt(1, endpoint="/v1/chat/completions", body={"messages": list(messages)})
    )
    assert encoder.token_ids(OfflinePrompt(1, body={"prompt": [5, 6]})) == [5, 6]
    assert encoder.token_ids(OfflinePrompt(1, num_prompt_tokens=9)) is None


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    rows = [f"{r.arrival_s},m,{r.num_prompt_tokens},{r.num_output_tokens},0,Log" for r in make_requests(8)]
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    return path


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_the_command_reports_in_the_schema_of_replay(trace_file: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "600,40\n" * 200)
    fitted = tmp_path / "fitted.json"
    fitted.write_bytes(msgspec.json.encode(RECORD))
    done = simulate(
        *("--online", str(trace_file), "--offline", str(lengths), "--budget-ms", "40", "--duration", "20"),
        *("--model", "qwen-14b", "--device", "a40", "--tp", "2", "--baseline", "--slo", "tbt_p99<=60ms"),
        *("--step-model", str(fitted), "--json", "-", "--progress"),
    )
    assert done.exit_code == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    assert report.run.url == "sim://2xa40?preset=hygen&budget_ms=40" and report.run.model == "qwen-14b"
    assert report.offline is not None and report.offline.completed > 0
    assert report.slo[0].met and report.harvest is not None
    assert "offline only" in done.stderr
    assert set(json.loads(done.stdout)) == {field.name for field in msgspec.structs.fields(Report)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "unknown device 'tpu'; known: a100-40g, a100-80g, a40, h100, h200"),
        (["--model", "gpt"], "unknown model 'gpt'; known: llama2-7b"),
        (["--model", "yi-34b"], "share it among more GPUs"),
        (["--preset", "hygen-star"], "give --offline-qps"),
        (["--step-model", "nowhere.json"], "nowhere.json: No such file"),
        (["--slo", "tbt_mean<=1.1x"], "give --baseline too"),
    ],
)
def test_bad_input_is_one_line(trace_file: Path, arguments: list[str], said: str) -> None:
    preset = () if "--preset" in arguments else ("--preset", "online-only")
    done = simulate("--online", str(trace_file), *preset, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_noise_beyond_what_a_float_holds_is_refused(trace_file: Path) -> None:
    done = simulate("--online", str(trace_file), "--noise", "1e10")
    assert done.exit_code == 2 and "Invalid value for '--noise'" in done.stderr
    assert simulate("--online", str(trace_file), "--noise", "10").exit_code == 0


def test_fairness_lets_the_light_client_in_first() -> None:
    """Many requests at once from few clients: vtc serves those who send little sooner than arrival order does."""
    requests = [TraceRequest(0.0, 800, 20) for _ in range(60)]
    setup = Machine(kv_blocks=400).setup(Strategy.of("online-only"), 0)
    ttfts_s = {}
    for order in ("fcfs", "vtc"):
        setup = Machine(kv_blocks=400).setup(Strategy.of("online-only", online_order=order), 0)
        workload = SimulatedWorkload(make_plan(requests, []), setup, num_clients=3)
        phase = workload.phase(setup, DURATION_S, online=True, offline=False)
        phase.run()
        of_client = zip(phase.records, workload.client_ids, strict=True)
        last = [record.token_times_s[0] for record, client in of_client if client == "client-3"]
        ttfts_s[order] = max(last)
    assert ttfts_s["vtc"] < ttfts_s["fcfs"]


def test_deadlines_are_kept_where_arrival_order_misses_them() -> None:
    """More offline work than the window has time for, and online requests that come into the middle of it."""
    requests, prompts = make_requests(7), [OfflinePrompt(60, num_prompt_tokens=1500) for _ in range(300)]
    plan = replace(make_plan(requests, prompts), slos=[parse_slo("ttft_p50<=400ms"), parse_slo("tpot_p50<=60ms")])
    strategies = {name: Strategy.of(name, ttft_slo_ms=400.0, tpot_slo_ms=60.0) for name in ("bros", "fcfs")}
    attained, served = {}, {}
    for name, strategy in strategies.items():
        simulation = Simulation(plan, Machine().setup(strategy, 0), "sim://test", NoProgress())
        simulation.run()
        report = simulation.report(partial=False)
        assert report.offline is not None
        attained[name] = [slo.attainment for slo in report.slo]
        served[name] = report.offline.completed
    assert attained["bros"] == [1.0, 1.0] and served["bros"] > 0
    assert attained["fcfs"][0] is not None and attained["fcfs"][0] < 0.5


def test_a_report_of_a_run_that_was_stopped_says_where() -> None:
    class Stopping(NoProgress):
        def online(self, sent: int, finished: int, failed: int) -> None:
            if finished > 20:
                raise KeyboardInterrupt

    plan = make_plan(make_requests(8, 300), make_prompts(8), baseline=True)
    simulation = Simulation(plan, Machine().setup(Strategy.of("hygen"), 0), "sim://test", Stopping())
    with pytest.raises(KeyboardInterrupt):
        simulation.run()
    stopped = simulation.report(partial=True)
    assert stopped.partial and f"online only: stopped {simulation.phases['online only'].how_far}" in stopped.notes
    assert re.fullmatch(r"after 1?[0-9]\.\d of its 20 s", simulation.phases["online only"].how_far)
    whole, report = run(plan, "hygen")
    assert {phase.how_far for phase in whole.phases.values()} == {"at its end"}
    assert not any("stopped" in note for note in report.notes)


@pytest.mark.parametrize("rule", ["last-token", "arrival"])
def test_a_looser_deadline_leaves_more_room_for_offline_work(rule: str) -> None:
    plan = make_plan(make_requests(8, 300), make_prompts(8, 600))
    completed = []
    for tpot_ms in (25.0, 200.0):
        strategy = Strategy.of("bros", ttft_slo_ms=400.0, tpot_slo_ms=tpot_ms, deadline_rule=rule)
        simulation = Simulation(plan, Machine().setup(strategy, 0), "sim://test", NoProgress())
        simulation.run()
        offline = simulation.report(partial=False).offline
        assert offline is not None
        completed.append(offline.completed)
    assert completed[0] < completed[1]


@pytest.mark.parametrize("preset", ["bros", "fcfs", "sarathi++"])
def test_a_backlog_in_waves_never_has_more_than_one_open(preset: str) -> None:
    strategy = Strategy.of(preset)
    setup = Machine().setup(strategy, 0)
    requests, prompts = make_requests(9), [OfflinePrompt(20, num_prompt_tokens=600) for _ in range(25)]
    workload = SimulatedWorkload(make_plan(requests, prompts), setup, wave_size=10)
    held: list[int] = []

    def count(phase: VirtualPhase) -> None:
        states = phase.executor.replica.tell()
        held.append(sum(state.kind is Kind.OFFLINE for state in states))
        waves = {state.arrival_s for state in states if state.kind is Kind.OFFLINE}
        assert len(waves) <= 1

    phase = workload.phase(setup, DURATION_S, online=True, offline=True, on_change=count)
    phase.run(drain=True)
    assert phase.num_offline_finished == 25 and 0 < max(held) <= 10
