"""How each service of a simulated stack is made: as its own ``__main__`` makes it, in a process of virtual time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llguidance
from llguidance import LLTokenizer

from services.executor.engines.factory import load_sim
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from services.offline_queue.__main__ import prepared
from services.offline_queue.settings import OfflineQueueSettings
from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.profiler.service import Profiler
from services.profiler.settings import ProfilerSettings
from shared.bus import Bus
from shared.clock import Clock
from shared.process.service import Service, serve
from shared.text.model_folder import tokenizer_digest
from shared.text.tokenizer import Tokenizer
from tests.simulation.engine import VirtualEngine, VirtualThreads
from tests.simulation.http import Network, VirtualHttpServer
from tests.simulation.nats import MemoryServer
from tests.simulation.process import Process
from tests.simulation.setup import CLIENTS_KEY, MODEL, Setup

Main = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Machine:
    """What the services of one world have in common. ``folder``: for what they keep in files."""

    setup: Setup
    nats: MemoryServer
    model_path: str
    folder: Path
    network: Network


def main_of(machine: Machine, name: str, process: Process, clock: Clock) -> Main:
    """What the process of this name runs: gateway-0, executor-1, offline-queue, offline-queue-standby and so on."""
    kind = next(kind for kind in MAKERS if name.startswith(kind))

    def make(bus: Bus) -> Service:
        service = MAKERS[kind](machine, name, process, clock)(bus)

        def note_at_work() -> None:
            process.at_work_s = clock.monotonic_s()

        _after(service, "start", process.on_started)
        _after(service, "_begin" if kind == "offline-queue" else "start", note_at_work)
        return service

    async def main() -> None:
        await serve(machine.nats.url, name, make, process.stopping)

    return main


def _after(service: Service, name: str, tell: Callable[[], None]) -> None:
    """Have that told when its coroutine of this name has ended well."""
    does = getattr(service, name)

    async def do_and_tell() -> None:
        await does()
        tell()

    setattr(service, name, do_and_tell)


def _gateway(machine: Machine, name: str, process: Process, clock: Clock) -> Callable[[Bus], Service]:
    settings = GatewaySettings(
        model_path=machine.model_path,
        model_name=MODEL,
        gateway_id=name,
        require_keys="always",
        api_key=CLIENTS_KEY,
        max_waiting_requests=machine.setup.max_waiting_requests,
        drain_s=machine.setup.drain_s,
    )
    return lambda bus: GatewayService(
        bus, settings, clock, functools.partial(VirtualHttpServer, machine.network, process)
    )


def _executor(machine: Machine, name: str, process: Process, clock: Clock) -> Callable[[Bus], Service]:
    setup = machine.setup
    settings = ExecutorSettings(
        model_path=machine.model_path,
        model_name=MODEL,
        executor_id=name,
        engine="sim",
        kv_blocks=setup.kv_blocks,
        block_size=setup.block_size,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=setup.max_model_len,
        pipeline_depth=setup.pipeline_depth,
        sim_time_scale=setup.sim_time_scale,
        sim_mean_output_tokens=setup.mean_output_tokens,
        step_timeout_s=setup.step_timeout_s,
        drain_on_stop_s=setup.drain_on_stop_s,
        strategy=setup.strategy,
        role=setup.role(name).value,
    )
    tokenizer = Tokenizer.from_folder(machine.model_path)
    engine = load_sim(settings, VirtualEngine)
    assert isinstance(engine, VirtualEngine)
    process.engine = engine
    threads = VirtualThreads(engine, setup.pipeline_depth)
    return lambda bus: ExecutorService(bus, settings, engine, tokenizer, clock, threads)


def _offline_queue(machine: Machine, name: str, process: Process, clock: Clock) -> Callable[[Bus], Service]:
    setup = machine.setup
    settings = OfflineQueueSettings(
        model_path=machine.model_path,
        model_name=MODEL,
        strategy=setup.strategy,
        block_size=setup.block_size,
        pool_mb=setup.pool_mb,
        max_flex_requests=setup.max_flex_requests,
    )
    return prepared(settings, clock)


def _predictor(machine: Machine, name: str, process: Process, clock: Clock) -> Callable[[Bus], Service]:
    # a fit takes no virtual time, by which its rate would be bounded
    setup = machine.setup
    settings = PredictorSettings(latency_model=setup.latency_model, window=setup.window, refit_interval_s=1800.0)
    return lambda bus: Predictor(bus, settings, clock)


def _profiler(machine: Machine, name: str, process: Process, clock: Clock) -> Callable[[Bus], Service]:
    settings = ProfilerSettings(cache_dir=str(machine.folder / name))
    return lambda bus: Profiler(bus, settings, clock)


MAKERS = {
    "gateway": _gateway,
    "executor": _executor,
    "offline-queue": _offline_queue,
    "predictor": _predictor,
    "profiler": _profiler,
}


@contextmanager
def files_read_once() -> Iterator[None]:
    """By this interpreter: a tokenizer takes longer to read than a service to start, and does not change."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Tokenizer, "from_folder", lambda path: _tokenizer(str(path))))
        stack.enter_context(patch("services.offline_queue.__main__.tokenizer_digest", _digest))
        stack.enter_context(patch.object(llguidance, "LLTokenizer", _tokenizer_of_grammars))
        yield


_tokenizer = functools.cache(Tokenizer.from_folder)
_digest = functools.cache(tokenizer_digest)


def _tokenizer_of_grammars(source: str, vocab_size: int | None = None, eos_token: Sequence[int] | None = None) -> Any:
    return _made_once(source, vocab_size, None if eos_token is None else tuple(eos_token))


@functools.cache
def _made_once(source: str, vocab_size: int | None, eos_token: tuple[int, ...] | None) -> LLTokenizer:
    return LLTokenizer(source, vocab_size, None if eos_token is None else list(eos_token))
