"""``python -m services.executor``."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from services.executor.engines.factory import load_engine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from services.executor.step_loop import ENGINE_THREADS
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.clock import SystemClock
from shared.errors import SlackwaterError
from shared.process.service import STOP_SIGNALS, configure_logging, run_service
from shared.replica.engine import Engine
from shared.settings import config
from shared.text.tokenizer import Tokenizer

INTERPRETER_WAIT_S = 1e-5
"""In which the engine's thread gets the interpreter back from the event loop, in place of Python's 5 ms: beside a GPU a
step would otherwise take longer by what the loop has to do for the one before (``benchmarks.engine.beside_loop``)."""


def main() -> int:
    try:
        settings = config.load(ExecutorSettings, "executor")
        tokenizer = Tokenizer.from_folder(Path(settings.model_path))
        configure_logging(settings.log_level)  # loading takes a while, and has much to say
        for signum in STOP_SIGNALS:
            signal.signal(signum, _end_at_once)
        engine = load_engine(settings)
    except SlackwaterError as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    return serve(settings, engine, tokenizer)


def _end_at_once(signum: int, _: FrameType | None) -> None:
    """Of a process that loads: Python would wait for the thread that does. A container's first process the system does
    not end, by a signal that it does not handle."""
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)
    os._exit(128 + signum)


def serve(settings: ExecutorSettings, engine: Engine, tokenizer: Tokenizer) -> int:
    """The exit status; where the engine hangs the process ends here, and with it the engine's workers."""
    if engine.spec.takes_steps_ahead:
        sys.setswitchinterval(INTERPRETER_WAIT_S)

    def make(bus: Bus) -> ExecutorService:
        return ExecutorService(bus, settings, engine, tokenizer, SystemClock())

    address = BusAddress.of(settings, BusRole.EXECUTOR)
    status = run_service(address, settings.log_level, settings.executor_id, make)
    if any(thread.name.startswith(ENGINE_THREADS) for thread in threading.enumerate()):
        for worker in multiprocessing.active_children():
            worker.kill()
        os._exit(status)  # Python would wait for the thread
    return status


if __name__ == "__main__":
    sys.exit(main())
