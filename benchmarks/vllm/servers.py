"""The servers that are compared: each started for its runs, turned by its knobs, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from benchmarks.vllm.workload import Setting
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError
from loadgen.report.report import OnlineReport
from services.local.stack.data_dir import DataDir
from services.local.stack.port import free_port
from services.local.stack.processes import log_file
from services.local.stack.processes.process import Command, Process
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


class Server(Protocol):
    """A running server."""

    @property
    def url(self) -> str: ...

    async def turn(self, *values: float) -> Mapping[str, Any]:
        """Set the system's knobs. Returns what a ReplayPlan needs beside: how offline work goes there."""


class System(Protocol):
    """One way to serve."""

    @property
    def name(self) -> str: ...

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """In the order in which they are searched; 0 is a knob that was not turned."""

    def everything(self, setting: Setting) -> tuple[float, ...]:
        """Values that hold no offline work back."""

    def serving(self, setting: Setting, model_path: Path, folder: Path) -> AbstractAsyncContextManager[Server]:
        """Logs and data go into ``folder``. Raises ServerError where it does not start."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's own API server. ``policy``: its scheduling policy; with "priority" offline requests come after online
    ones."""

    name: str
    policy: str
    knobs: tuple[Knob, ...] = (Knob("offline requests at a time", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), lambda _: 2.0),)

    def everything(self, setting: Setting) -> tuple[float, ...]:
        return (setting.max_num_seqs,)

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = Command(self.name, self._argv(setting, model_path, port), folder / "vllm.log", _vllm_environ(setting))
        async with OpenAIClient(url, START_S) as client, _running(command, lambda: _answers(client, "/health")):
            yield VllmServer(url, OFFLINE_PRIORITY if self.policy == "priority" else {})

    def _argv(self, setting: Setting, model_path: Path, port: int) -> tuple[str, ...]:
        flags: dict[str, object] = {
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
        words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
        switches = ("--enforce-eager", "--enable-prefix-caching")
        return (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, *switches)


@dataclass(frozen=True, slots=True)
class VllmServer:
    """Its knob is turned at the client: how many offline requests are sent at a time."""

    url: str
    offline_extra: Mapping[str, Any]

    async def turn(self, *values: float) -> Mapping[str, Any]:
        (num_requests,) = values
        return {
            "offline_mode": "requests",
            "offline_concurrency": round(num_requests),
            "offline_extra": self.offline_extra,
        }


@dataclass(frozen=True, slots=True)
class Slackwater:
    """``slackwater up`` with an engine."""

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
            argv = self._argv(setting, free_port(), data_dir)
            command = Command(self.name, argv, folder / "up.log", _our_environ(setting))
            async with _running(command, lambda: _is_up(data_dir)):
                stack = data_dir.read_stack()
                bus = await Bus.connect(stack.nats_url, "side-by-side")
                try:
                    yield SlackwaterServer(stack.http_url, bus)
                finally:
                    await bus.close()

    def _argv(self, setting: Setting, port: int, data_dir: DataDir) -> tuple[str, ...]:
        flags: dict[str, object] = {
            "engine": self.engine,
            "model": setting.model,
            "port": port,
            "threads": setting.threads,
            "kv-blocks": setting.kv_tokens // BLOCK_TOKENS[self.engine],
            "data-dir": data_dir.path,
        }
        words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
        return (sys.executable, "-c", "from services.local.cli import main; main()", "up", *words)


@dataclass(frozen=True, slots=True)
class SlackwaterServer:
    """Its knobs are the stack's latency budgets, of steps without online requests and of those beside them, set on its
    bus as ``slackwater profile --live`` does."""

    url: str
    bus: Bus

    async def turn(self, *values: float) -> Mapping[str, Any]:
        idle_budget_ms, budget_ms = values
        executors = await self.bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        budgets = await self.bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        for entry in await executors.entries():
            if entry.value is not None:
                key = entry.value.profile_key
                await budgets.put(key, BudgetRecord(key, budget_ms, BudgetSource.PROFILING, idle_budget_ms))
        return {"offline_mode": "batch", "count_generated": True}


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        Vllm("vllm-priority", "priority"),
        Vllm("vllm-plain", "fcfs"),
        Slackwater("slackwater-vllm", "vllm"),
        Slackwater("slackwater-torch", "torch"),
    )
}


@asynccontextmanager
async def _running(command: Command, is_ready: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Started and ready, until the end of the context. Raises ServerError with the end of the log."""
    process = await Process.start(command)
    ended = asyncio.ensure_future(process.wait())
    try:
        if not await _becomes_ready(ended, is_ready):
            raise ServerError(f"{command.name} does not start; the end of {command.log}:\n{log_file.tail(command.log)}")
        yield
    finally:
        await process.terminate(GRACE_S)
        ended.cancel()


async def _becomes_ready(ended: asyncio.Future[int], is_ready: Callable[[], Awaitable[bool]]) -> bool:
    """Within ``START_S``, and before it ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while not ended.done():
                if await is_ready():
                    return True
                await asyncio.wait((ended,), timeout=POLL_S)
    return False


async def _answers(client: OpenAIClient, path: str) -> bool:
    try:
        await client.get_bytes(path)
    except ServerError:
        return False
    return True


async def _is_up(data_dir: DataDir) -> bool:
    try:
        return data_dir.read_stack().ready
    except StackError:
        return False


def _mean_tbt_ms(alone: OnlineReport) -> float:
    return alone.tbt_ms.mean if alone.tbt_ms else BUDGETS_MS[0]


def _vllm_environ(setting: Setting) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(setting.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the blocks that are asked for fit, and no more are made
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _our_environ(setting: Setting) -> dict[str, str]:
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    return {f"SLACKWATER_{name.upper()}": str(getattr(setting, name)) for name in names}
