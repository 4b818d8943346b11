"""The servers that are compared: each started for its runs, turned by its knobs, and ended."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness.stack import answers
from benchmarks.vllm.workload import Setting
from loadgen.errors import ServerError
from services.local.stack.data_dir import DataDir
from services.local.stack.machine import free_port
from services.local.stack.processes.process import Command, Process, tail
from shared.errors import StackError

START_S, GRACE_S, POLL_S = 300.0, 30.0, 0.25
VLLM_BLOCK_TOKENS, BLOCK_TOKENS = 32, {"vllm": 32, "torch": 16, "sim": 16}
OFFLINE_PRIORITY = {"priority": 1}  # lower is sooner, and what comes without one has 0


@dataclass(frozen=True, slots=True)
class Knob:
    """``ladder``: its values, ascending; ``first``: where a search begins; ``most`` holds no offline work back."""

    name: str
    ladder: tuple[float, ...]
    first: float
    most: float


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``offline``: how offline work goes there, for a ReplayPlan, with this value of its knob."""

    url: str
    offline: Callable[[float | None], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's own API server. ``policy``: its scheduling policy; with "priority" offline requests come after online
    ones. Its knob is turned at the client: how many offline requests are sent at a time."""

    name: str
    policy: str
    knob: Knob | None = Knob("offline requests at a time", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 2, 1024)

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
            yield Server(url, self._offline)

    def _offline(self, num_requests: float | None) -> Mapping[str, Any]:
        extra = OFFLINE_PRIORITY if self.policy == "priority" else {}
        return {"offline_mode": "requests", "offline_concurrency": round(num_requests or 1), "offline_extra": extra}


@dataclass(frozen=True, slots=True)
class Slackwater:
    """``slackwater up`` with an engine, and nothing else set that bears on scheduling: it has no knob."""

    name: str
    engine: str
    knob: Knob | None = None

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        kv_blocks = setting.kv_tokens // BLOCK_TOKENS[self.engine]
        limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        environ = {f"SLACKWATER_{name.upper()}": str(getattr(setting, name)) for name in limits}
        options = {"engine": self.engine, "model": setting.model, "threads": setting.threads, "kv-blocks": kv_blocks}
        async with stack(self.name, folder, options, environ) as url:
            yield Server(url, lambda _: {"offline_mode": "batch", "count_generated": True})


@asynccontextmanager
async def stack(
    name: str, folder: Path, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """The URL of ``slackwater up`` with these options, whose log goes into the folder. Raises ServerError where it does
    not start."""
    with TemporaryDirectory(prefix="data-", dir=folder, ignore_cleanup_errors=True) as store:
        data_dir = DataDir(Path(store))
        program = ("-c", "from services.local.cli import main; main()", "up")
        every = {**options, "port": free_port(), "data-dir": data_dir.path}
        command = Command(name, _python(program, every), folder / "up.log", dict(environ or {}))
        async with _running(command, lambda: _is_up(data_dir)):
            yield data_dir.read_stack().http_url


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
