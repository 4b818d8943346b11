"""``slackwater simulate``: the command line of the simulator."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from loadgen.backlog import load_backlog
from loadgen.cli import EXIT_NOTHING_DONE, did_something, errors_as_lines, write_report
from loadgen.errors import WorkloadError
from loadgen.options import (
    BaselineOption,
    DrainOption,
    FillerOption,
    JsonFileOption,
    LengthScaleOption,
    MaxContextOption,
    ModelPathOption,
    OfflineLimitOption,
    OfflineMaxTokensOption,
    OfflineOnlyShareOption,
    OfflineOption,
    OnlineOption,
    ProgressOption,
    QpsOption,
    RateScaleOption,
    SeedOption,
    SloOption,
    StartOption,
    TimeScaleOption,
)
from loadgen.progress import progress_on
from loadgen.replay import ReplayPlan
from loadgen.scaling import Scaling
from loadgen.slo import parse_slo
from loadgen.traces import read_trace
from services.profiler.simulation.setup import LIVE, Machine, make_strategy
from services.profiler.simulation.simulation import Simulation
from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES
from shared.scheduling.presets import PRESETS

SimDurationOption = Annotated[float, typer.Option("--duration", help="Seconds of virtual time.")]
ModelNameOption = Annotated[str, typer.Option("--model", help=", ".join(ARCHITECTURES))]
DeviceOption = Annotated[str, typer.Option(help=", ".join(DEVICES))]
TensorParallelOption = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the model.")]
PresetOption = Annotated[str, typer.Option(help=", ".join(PRESETS))]
BudgetOption = Annotated[float | None, typer.Option(min=0.0, help="Latency budget of a step, for hygen.")]
OfflineQpsOption = Annotated[float | None, typer.Option(help="Offline requests per second, for hygen-star.")]
BatchedTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of one step: the chunk size.")]
NumSeqsOption = Annotated[int, typer.Option(min=1, help="Requests of one step.")]
KvBlocksOption = Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")]
StepModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) that steps take, not the roofline.")
]
PlanModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) to plan with; else what steps take.")
]
NoiseOption = Annotated[float, typer.Option(min=0.0, help="Sigma of a lognormal factor on each step's time.")]


def simulate(
    online: OnlineOption = None,
    offline: OfflineOption = None,
    model: ModelNameOption = LIVE.sim_model,
    device: DeviceOption = LIVE.sim_device,
    tp: TensorParallelOption = 1,
    preset: PresetOption = "hygen",
    budget_ms: BudgetOption = None,
    offline_qps: OfflineQpsOption = None,
    start: StartOption = 0.0,
    duration: SimDurationOption = 3600.0,
    qps: QpsOption = None,
    rate_scale: RateScaleOption = None,
    time_scale: TimeScaleOption = 1.0,
    length_scale: LengthScaleOption = 1.0,
    max_context: MaxContextOption = None,
    seed: SeedOption = 0,
    model_path: ModelPathOption = None,
    filler: FillerOption = None,
    offline_limit: OfflineLimitOption = None,
    offline_max_tokens: OfflineMaxTokensOption = None,
    max_num_batched_tokens: BatchedTokensOption = LIVE.max_num_batched_tokens,
    max_num_seqs: NumSeqsOption = LIVE.max_num_seqs,
    kv_blocks: KvBlocksOption = None,
    step_model: StepModelOption = None,
    plan_model: PlanModelOption = None,
    noise: NoiseOption = 0.0,
    drain: DrainOption = False,
    slo: SloOption = None,
    baseline: BaselineOption = False,
    offline_only_share: OfflineOnlyShareOption = 0.5,
    json_file: JsonFileOption = None,
    progress: ProgressOption = None,
) -> None:
    """Replay a production trace beside an offline backlog on a named GPU and model, in virtual time.

    The schedule and the KV accounting are the live system's; a step takes as long as a roofline model says. The
    report is that of replay.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console), _value_errors_as_named():
        scaling = Scaling(start, duration, qps, rate_scale, time_scale, length_scale, seed)
        strategy = make_strategy(preset, budget_ms, offline_qps)
        machine = Machine(
            model,
            device,
            tp,
            max_num_batched_tokens,
            max_num_seqs,
            kv_blocks=kv_blocks,
            step_file=step_model,
            plan_file=plan_model,
            noise=noise,
        )
        setup = machine.setup(strategy, seed)
        plan = ReplayPlan(
            requests=scaling.apply(read_trace(online)) if online else [],
            prompts=load_backlog(offline, offline_limit, offline_max_tokens) if offline else [],
            scaling=scaling,
            trace=str(online) if online else None,
            prompt_file=str(offline) if offline else None,
            model=setup.spec.model,
            model_path=model_path,
            filler=filler,
            max_context=max_context,
            slos=[parse_slo(expr) for expr in slo or []],
            baseline=baseline,
            offline_only_share=offline_only_share,
            drain=drain,
        )
        shown = sys.stderr.isatty() if progress is None else progress
        with progress_on(console, shown) as bars:
            simulation = Simulation(plan, setup, strategy, machine.url(strategy), bars)
            stopped_by = _run(simulation)
        report = simulation.report(stopped_by is not None) if simulation.phases else None
        if report is not None:
            write_report(report, json_file)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if report is None or not did_something(report):
        raise typer.Exit(EXIT_NOTHING_DONE)


@contextmanager
def _value_errors_as_named() -> Iterator[None]:
    """The pure core's errors, as those of a workload that cannot be."""
    try:
        yield
    except ValueError as error:
        raise WorkloadError(str(error)) from error


class _Stopped(BaseException):
    """A signal came."""

    def __init__(self, number: int) -> None:
        self.number = number


def _run(simulation: Simulation) -> int | None:
    """To the end, or to SIGINT or SIGTERM, whose number is returned."""

    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        simulation.run()
    except _Stopped as stopped:
        return stopped.number
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return None
