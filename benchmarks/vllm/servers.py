"""The servers that are compared: each started for its runs, turned by its knobs, and ended."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness.stack import answers
from benchmarks.vllm.workload import Setting
from loadgen.errors import ServerError
from loadgen.report.report import OnlineReport
from services.local.stack.data_dir import DataDir
from services.local.stack.machine import free_port
from services.local.stack.processes.process import Command, Process, tail
from shared.bus import Bus
from shared.errors import StackError
from shared.protocol import subjects
from shared.protocol.budgets import BudgetRecord, BudgetSource
from shared.protocol.executors import ExecutorInfo

START_S, GRACE_S, POLL_S = 300.0, 30.0, 0.25
VLLM_BLOCK_TOKENS, BLOCK_TOKENS = 32, {"vllm": 32, "torch": 16, "sim": 16}
OFFLINE_PRIORITY = {"priority": 1}  # lower is sooner, and what comes without one has 0
NOTHING_HELD_BACK_MS = 1e6
FIRST_BUDGET, FIRST_IDLE_BUDGET = 1.15, 3.0  # times the online-only mean TBT
BUDGETS_MS = tuple(float(f"{10 * 1.15**step:.3g}") for step in range(34))  # 10 ms to 1 s


@dataclass(frozen=True, slots=True)
class Knob:
    """``ladder``: its values, ascending; ``first``: where a search begins, by online work alone."""

    name: str  # with the unit
    ladder: tuple[float, ...]
    first: Callable[[OnlineReport], float]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``turn`` sets the system's knobs, and says to a ReplayPlan how offline work goes there."""

    url: str
    turn: Callable[..., Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's own API server. ``policy``: its scheduling policy; with "priority" offline requests come after online
    ones. Its knob is turned at the client: how many offline requests are sent at a time."""

    name: str
    policy: str
    knobs: tuple[Knob, ...] = (Knob("offline requests at a time", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), lambda _: 2.0),)

    def everything(self, setting: Setting) -> tuple[float, ...]:
        """Values of the knobs that hold no offline work back."""
        return (setting.max_num_seqs,)

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        """Logs and data go into ``folder``. Raises ServerError where it does not start."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        options = {
            "model": model_path,
            "served-model-name": setting.model,
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "scheduling-policy": self.policy,
            "max-model-len": setting.max_model_len,
            "max-num-seqs": setting.max_num_seqs,
            "max-num-batched-tokens": setting.max_num_batched_tokens,
            "block-size": VLLM_BLOCK_TOKENS,
            "num-gpu-blocks-override": setting.kv_tokens // VLLM_BLOCK_TOKENS,
        }
        program = ("-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--enable-prefix-caching")
        environ = {
            "OMP_NUM_THREADS": str(setting.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the blocks that are asked for fit, and no more are made
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = Command(self.name, _python(program, options), folder / "vllm.log", environ)
        async with _running(command, lambda: answers(f"{url}/health")):
            yield Server(url, self._turn)

    async def _turn(self, num_requests: float) -> Mapping[str, Any]:
        extra = OFFLINE_PRIORITY if self.policy == "priority" else {}
        return {"offline_mode": "requests", "offline_concurrency": round(num_requests), "offline_extra": extra}


@dataclass(frozen=True, slots=True)
class Slackwater:
    """``slackwater up`` with an engine. Its knobs are the stack's latency budgets, of steps without online requests and
    of those beside them, set on its bus as ``slackwater profile --live`` does."""

    name: str
    engine: str
    knobs: tuple[Knob, ...] = (  # what costs online work least for the offline work that it gives first
        Knob("idle budget ms", BUDGETS_MS, lambda alone: FIRST_IDLE_BUDGET * _mean_tbt_ms(alone)),
        Knob("budget ms", BUDGETS_MS, lambda alone: FIRST_BUDGET * _mean_tbt_ms(alone)),
    )

    def everything(self, setting: Setting) -> tuple[float, ...]:
        return (NOTHING_HELD_BACK_MS, NOTHING_HELD_BACK_MS)

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        with TemporaryDirectory(prefix="data-", dir=folder, ignore_cleanup_errors=True) as store:
            data_dir = DataDir(Path(store))
            options = {
                "engine": self.engine,
                "model": setting.model,
                "port": free_port(),
                "threads": setting.threads,
                "kv-blocks": setting.kv_tokens // BLOCK_TOKENS[self.engine],
                "data-dir": data_dir.path,
            }
            program = ("-c", "from services.local.cli import main; main()", "up")
            limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
            environ = {f"SLACKWATER_{name.upper()}": str(getattr(setting, name)) for name in limits}
            command = Command(self.name, _python(program, options), folder / "up.log", environ)
            async with _running(command, lambda: _is_up(data_dir)):
                stack = data_dir.read_stack()
                bus = await Bus.connect(stack.nats_url, "side-by-side")
                try:
                    yield Server(stack.http_url, partial(_set_budgets, bus))
                finally:
                    await bus.close()


async def _set_budgets(bus: Bus, idle_budget_ms: float, budget_ms: float) -> Mapping[str, Any]:
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    for key in [entry.value.profile_key for entry in await executors.entries() if entry.value is not None]:
        await budgets.put(key, BudgetRecord(key, budget_ms, BudgetSource.PROFILING, idle_budget_ms))
    return {"offline_mode": "batch", "count_generated": True}


System = Vllm | Slackwater
PRIORITY, PLAIN = Vllm("vllm-priority", "priority"), Vllm("vllm-plain", "fcfs")
ON_VLLM, ON_TORCH = Slackwater("slackwater-vllm", "vllm"), Slackwater("slackwater-torch", "torch")
SYSTEMS: Mapping[str, System] = {system.name: system for system in (PRIORITY, PLAIN, ON_VLLM, ON_TORCH)}


def _python(program: tuple[str, ...], options: Mapping[str, object]) -> tuple[str, ...]:
    return (sys.executable, *program, *(word for name, value in options.items() for word in (f"--{name}", str(value))))


@asynccontextmanager
async def _running(command: Command, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Ready within ``START_S``, until the end of the context. Raises ServerError with the end of the log."""
    process = await Process.start(command)
    ended, ready = asyncio.ensure_future(process.wait()), False
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while not ended.done() and not (ready := is_ready()):
                    await asyncio.wait((ended,), timeout=POLL_S)
        if not ready:
            raise ServerError(f"{command.name} does not start; the end of {command.log}:\n{tail(command.log)}")
        yield
    finally:
        await process.terminate(GRACE_S)
        ended.cancel()


def _is_up(data_dir: DataDir) -> bool:
    try:
        return data_dir.read_stack().ready
    except StackError:
        return False


def _mean_tbt_ms(alone: OnlineReport) -> float:
    return alone.tbt_ms.mean if alone.tbt_ms else BUDGETS_MS[0]
