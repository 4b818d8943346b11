"""What a plan is asked for: from options to a job for each device. Raises named errors for what cannot be planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import SloError, WorkloadError
from loadgen.options import JsonFileOption, ProgressOption, WorkloadOptions
from loadgen.report.slo import Slo, parse_slo
from loadgen.workload.traces import TraceRequest, read_trace
from services.executor.settings import DEFAULT_BLOCK_SIZE
from services.profiler.capacity.device_job import DeviceJob
from services.profiler.capacity.lost_slos import most_samples
from services.profiler.capacity.resources import TENSOR_PARALLELS, fitting_tensor_parallels
from services.profiler.capacity.workload import PlannedWorkload
from services.profiler.simulation.cli import ExecutorOptions
from services.profiler.simulation.setup import LIVE
from shared.latency.architectures import architecture_named
from shared.latency.devices import DEVICES, device_named
from shared.scheduling.strategy import Strategy

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is to be kept, what may be bought, and where the answer goes."""

    slo: Annotated[
        list[str] | None, typer.Option(help="ttft_p90<=1s, or tpot_p90<=50ms, of online requests; repeatable.")
    ] = None
    device: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(DEVICES)}; repeatable: each is planned for by itself.", show_default=LIVE.sim_device
        ),
    ] = None
    tensor_parallel: Annotated[
        list[int] | None,
        typer.Option("--tp", min=1, help="GPUs that share the model; repeatable.", show_default="1, 2, 4 and 8"),
    ] = None
    max_executors: Annotated[int, typer.Option(min=1, help="The most that are tried, of each device and --tp.")] = 16
    peak: Annotated[float, typer.Option(min=1.0, help="Seconds of the trace's busiest part.")] = 300.0
    window: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="Seconds that are run with offline work.", show_default="the trace's length, up to a day"
        ),
    ] = None
    backlog: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Offline requests whose time is wanted, like the file's.",
            show_default="as many as the file has",
        ),
    ] = None
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plan: .svg, .png or .pdf.")] = None
    json_file: JsonFileOption = None
    progress: ProgressOption = None

    @property
    def devices(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(self.device or [LIVE.sim_device]))

    def slos(self) -> list[Slo]:
        """Raises SloError where there are none, or one cannot be planned with."""
        if not self.slo:
            raise SloError("nothing to keep: give --slo, for example --slo 'ttft_p90<=1s' --slo 'tpot_p90<=50ms'")
        slos = [parse_slo(expr) for expr in self.slo]
        for slo in slos:
            if slo.relative:
                raise SloError(
                    f"SLO {slo.expr!r} is relative to what online work gets alone, which each count of executors "
                    "keeps: give a bound in ms or s"
                )
        return slos

    def workload(self, options: WorkloadOptions, model: str, clients: int) -> PlannedWorkload:
        """Read the files. Raises TraceError, WorkloadError, and ValueError for an SLO that the trace cannot have."""
        if options.online is None:
            raise WorkloadError("a plan is made for a trace of online requests: give --online")
        window_s = self.window or trace_length_s(options)
        whole = options.plan(window_s, model)
        workload = PlannedWorkload.of(whole, self.peak, clients)
        require_samples(self.slos(), workload.peak.requests, f"the trace's busiest {workload.peak_s:g} s")
        return workload

    def jobs(
        self, model: str, limits: ExecutorOptions, strategy: Strategy, workload: PlannedWorkload
    ) -> list[DeviceJob]:
        """Raises ValueError for an unknown model or device, and where the model does not fit a device."""
        tensor_parallels = {device: self._tensor_parallels(model, device, limits) for device in self.devices}
        if limits.step_model is not None and sum(map(len, tensor_parallels.values())) > 1:
            raise ValueError("--step-model is of one kind of executor: give one --device and one --tp with it")
        return [
            DeviceJob(
                limits.machine(model, device=device),
                strategy,
                workload,
                self.slos(),
                fitting,
                self.max_executors,
                self.backlog or len(workload.whole.prompts),
                workload.whole.scaling.seed,
            )
            for device, fitting in tensor_parallels.items()
        ]

    def _tensor_parallels(self, model: str, device: str, limits: ExecutorOptions) -> list[int]:
        wanted, gpus = self.tensor_parallel or TENSOR_PARALLELS, (architecture_named(model), device_named(device))
        return fitting_tensor_parallels(*gpus, wanted, DEFAULT_BLOCK_SIZE, limits.pipeline_depth)


def trace_length_s(options: WorkloadOptions) -> float:
    """Whole seconds of the replay from ``--start`` to the trace's last request, up to a day. Raises WorkloadError."""
    last_s = 0.0
    for request in read_trace(options.online) if options.online else ():
        last_s = request.arrival_s
    left_s = last_s - options.start
    if left_s < 0:
        raise WorkloadError(f"the trace ends after {last_s:.0f} s, before --start {options.start:g}")
    return min(DAY_S, math.floor(left_s / options.time_scale) + 1.0)


def require_samples(slos: Sequence[Slo], requests: Sequence[TraceRequest], where: str) -> None:
    """Raises ValueError for an SLO on a metric that no answer to these requests has."""
    for slo in slos:
        if most_samples(slo.metric, requests) == 0:
            raise ValueError(
                f"SLO {slo.expr!r} is about the time between tokens, and no request of {where} has an answer of two: "
                "leave it out, or give a trace with output lengths"
            )
