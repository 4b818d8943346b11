"""The servers that are compared: each started for its runs, turned by its knobs, and ended."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.local_stack import local_stack, python_command, running
from benchmarks.harness.stack import answers
from benchmarks.vllm.chat import set_by_engines
from benchmarks.vllm.workload import Setting
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import WorkloadError
from loadgen.progress import RenamedProgress, ReplayProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.report import Report
from services.local.stack.machine import free_port
from services.local.stack.processes.process import Command

VLLM_BLOCK_TOKENS, BLOCK_TOKENS = 32, {"vllm": 32, "torch": 16, "sim": 16}
REQUEST_TIMEOUT_S = 600.0
MAX_NAMED = 5  # of a run's online requests that failed
OFFLINE_PRIORITY = {"priority": 1}  # lower is sooner, and what comes without one has 0


@dataclass(frozen=True, slots=True)
class Knob:
    """``ladder``: its values, ascending; ``first``: where a search begins; ``most`` holds no offline work back."""

    name: str
    ladder: tuple[float, ...]
    first: float
    most: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """One run. ``failed``: of its online requests each that failed, which and why."""

    report: Report
    failed: Sequence[str] = ()

    @property
    def what_failed(self) -> str:
        """How many of its online requests, and of the first ones which and why; empty where none did."""
        if self.report.online is None or not self.failed:
            return ""
        named = "; ".join(self.failed[:MAX_NAMED])
        others = f"; and {len(self.failed) - MAX_NAMED} more" if len(self.failed) > MAX_NAMED else ""
        return f"{len(self.failed)} of {self.report.online.requests} online requests failed: {named}{others}"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``offline``: how offline work goes there, for a ReplayPlan, with this value of its knob."""

    url: str
    offline: Callable[[float | None], Mapping[str, Any]]

    async def replayed(self, plan: ReplayPlan, value: float | None, progress: ReplayProgress, name: str) -> Replayed:
        """A run of that plan, shown under that name. Raises LoadgenError."""
        if plan.prompts:
            plan = replace(plan, **self.offline(value))
        async with OpenAIClient(self.url, REQUEST_TIMEOUT_S) as client:
            replay = Replay(plan, client, RenamedProgress(progress, lambda _: name))
            await replay.prepare_and_run()
        return Replayed(replay.report(partial=False), replay.failed_online())


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's own API server. ``policy``: its scheduling policy; with "priority" offline requests come after online
    ones. ``sizes``: tokens and requests of a step, where they are not the setting's. Its knob is turned at the client:
    how many offline requests are sent at a time."""

    name: str
    policy: str
    sizes: tuple[int, int] | None = None
    knob: Knob | None = Knob("offline requests at a time", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 2, 1024)

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        """Logs and data go into ``folder``. Raises ServerError where it does not start."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        num_tokens, num_seqs = self.sizes or (setting.max_num_batched_tokens, setting.max_num_seqs)
        options = {
            "model": model_path,
            "served-model-name": setting.model,
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "scheduling-policy": self.policy,
            "max-model-len": setting.max_model_len,
            "max-num-seqs": num_seqs,
            "max-num-batched-tokens": num_tokens,
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
        as_its_users = ("env", *(word for name in set_by_engines() for word in ("-u", name)))
        command = Command(self.name, (*as_its_users, *python_command(program, options)), folder / "vllm.log", environ)
        async with running(command, lambda: answers(f"{url}/health")):
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
        limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        environ = {f"SLACKWATER_{name.upper()}": str(getattr(setting, name)) for name in limits}
        options = stack_options(self.engine, setting.model, setting.threads, setting.kv_tokens)
        async with local_stack(self.name, folder, options, environ) as data_dir:
            url = data_dir.read_stack().http_url
            yield Server(url, lambda _: {"offline_mode": "batch", "count_generated": True})


def stack_options(engine: str, model: str, threads: int, kv_tokens: int) -> dict[str, object]:
    """Of ``slackwater up``, with room for so many tokens in the KV cache."""
    return {"engine": engine, "model": model, "threads": threads, "kv-blocks": kv_tokens // BLOCK_TOKENS[engine]}


System = Vllm | Slackwater
PRIORITY, PLAIN = Vllm("vllm-priority", "priority"), Vllm("vllm-plain", "fcfs")
ON_VLLM, ON_TORCH = Slackwater("slackwater-vllm", "vllm"), Slackwater("slackwater-torch", "torch")
SYSTEMS: Mapping[str, System] = {system.name: system for system in (PRIORITY, PLAIN, ON_VLLM, ON_TORCH)}


def system_named(text: str) -> System:
    """NAME, or of vLLM ``NAME:TOKENSxREQUESTS`` with steps of other sizes. Raises WorkloadError for another."""
    name, _, sizes = text.partition(":")
    if (system := SYSTEMS.get(name)) is None:
        raise WorkloadError(f"unknown system {name!r}; known: {', '.join(SYSTEMS)}")
    if not sizes:
        return system
    numbers = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})", sizes)
    if numbers is None or not isinstance(system, Vllm):
        raise WorkloadError(
            f"{text!r}: of vLLM NAME:TOKENSxREQUESTS has steps of other sizes, as {PRIORITY.name}:256x16"
        )
    return replace(system, name=text, sizes=(int(numbers[1]), int(numbers[2])))
