"""A stack of the torch engine under a replay: its report, and what the stack's processes took meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.local_stack import UP_LOG, ends_of_logs, local_stack
from loadgen.client.counters import BUSY_METRIC, Reading, idle_share, read_counter
from loadgen.client.openai_client import OpenAIClient
from loadgen.progress import NoProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.outcome import PhaseOutcome
from loadgen.report.report import Report
from services.local.stack.data_dir import DataDir
from services.local.stack.processes.process import tail

TIMEOUT_S, SAMPLE_S = 300.0, 0.5
SUPERVISOR, LOAD_GENERATOR = "slackwater up", "load generator"


@dataclass(frozen=True, slots=True)
class Sample:
    """``busy``: seconds in engine steps by executor, as the stack tells them once a second; ``cpu_s``: of processor
    time by process. Both since the start."""

    time_s: float
    busy: Reading | None
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """``phases``: by the names that the load generator has for them; ``status``: of the stack, after the run."""

    report: Report
    phases: Mapping[str, PhaseOutcome]
    samples: Sequence[Sample]
    status: Mapping[str, Any]

    def idle_share(self, phase: str) -> float | None:
        """Of the phase's window, in which the executor computed nothing, 0 to 1; None where it is not known."""
        within = self._within(phase)
        return idle_share(within[0].busy, within[-1].busy) if len(within) > 1 else None

    def cpu_share(self, phase: str) -> dict[str, float]:
        """Processor seconds a second by process, over the phase's window; empty where it has no two samples."""
        within = self._within(phase)
        if len(within) < 2:
            return {}
        first, last = within[0], within[-1]
        seconds = last.time_s - first.time_s
        return {
            name: (last.cpu_s[name] - before) / seconds for name, before in first.cpu_s.items() if name in last.cpu_s
        }

    def wrong(self) -> list[str]:
        """What may not be, by phase: online requests that failed, and why the first did; no offline token."""
        said = []
        for name, phase in self.phases.items():
            errors = [record.error for record in phase.records if record.error is not None]
            if errors:
                said.append(f"{name}: {len(errors)} online requests failed: {errors[0]}")
            if phase.offline is not None and not phase.offline.output_tokens_per_s:
                said.append(f"{name}: no offline token came")
        return said

    def _within(self, phase: str) -> list[Sample]:
        outcome = self.phases.get(phase)
        if outcome is None or outcome.window is None:
            return []
        start_s, end_s = outcome.window
        return [sample for sample in self.samples if start_s <= sample.time_s <= end_s]


async def run(plan: ReplayPlan, model: str, device: str, folder: Path) -> Found:
    """The whole of it, in a stack of its own that keeps its data below the folder. Where something fails, the ends of
    its logs go to stderr. Raises ServerError."""
    options, environ = {"engine": "torch", "model": model}, {"SLACKWATER_DEVICE": device}
    async with local_stack("stack", folder, options, environ) as data_dir:
        try:
            found = await _replay(plan, data_dir)
        except BaseException:
            _tell_logs(data_dir, folder)
            raise
        if found.wrong():
            _tell_logs(data_dir, folder)
        return found


async def _replay(plan: ReplayPlan, data_dir: DataDir) -> Found:
    async with OpenAIClient(data_dir.read_stack().http_url, TIMEOUT_S) as client:
        await Replay(_warm_up(plan), client, NoProgress()).prepare_and_run()
        replay = Replay(plan, client, NoProgress())
        async with _sampled(client, data_dir) as samples:
            await replay.prepare_and_run()
        status = await client.get_json("/status")
        return Found(replay.report(partial=False), replay.outcomes(), samples, status["status"])


def _warm_up(plan: ReplayPlan) -> ReplayPlan:
    """The beginning of both together: what is compiled at its first use, is before a window begins."""
    requests = [request for request in plan.requests if request.arrival_s < plan.warm_up_s]
    scaling = replace(plan.scaling, duration_s=plan.warm_up_s)
    return replace(plan, requests=requests, scaling=scaling, baseline=False, warm_up_s=0.0, mark_offline=True)


@contextlib.asynccontextmanager
async def _sampled(client: OpenAIClient, data_dir: DataDir) -> AsyncIterator[list[Sample]]:
    """Samples, while the context lasts."""
    samples: list[Sample] = []
    cpu_s = _processor_times(data_dir)

    async def sample() -> None:
        while True:
            busy = await read_counter(client, BUSY_METRIC)
            samples.append(Sample(time.perf_counter(), busy, cpu_s()))
            await asyncio.sleep(SAMPLE_S)

    sampling = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        sampling.cancel()
        await asyncio.wait((sampling,))


def _processor_times(data_dir: DataDir) -> Callable[[], dict[str, float]]:
    """What asks for the seconds of each process of the stack, and of this one."""
    stack = data_dir.read_stack()
    pids = {name: entry.pid for name, entry in stack.processes.items() if entry.pid is not None}
    pids |= {SUPERVISOR: stack.supervisor_pid, LOAD_GENERATOR: os.getpid()}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def ask() -> dict[str, float]:
        times = {}
        for name, process in processes.items():
            with contextlib.suppress(psutil.Error):  # it has ended
                times[name] = sum(process.cpu_times()[:2])
        return times

    return ask


def _tell_logs(data_dir: DataDir, folder: Path) -> None:
    print(f"{ends_of_logs(data_dir)}\nthe end of {UP_LOG}:\n{tail(folder / UP_LOG)}", file=sys.stderr)
