"""Commands that run for as long as a context does, and the whole stack as its user has it: ``slackwater up``."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from loadgen.errors import ServerError
from services.local.stack.data_dir import DataDir
from services.local.stack.machine import free_port
from services.local.stack.processes.process import Command, Process, tail
from shared.errors import StackError

START_S, GRACE_S, POLL_S = 300.0, 40.0, 0.25
UP_LOG = "up.log"


@asynccontextmanager
async def local_stack(
    name: str, folder: Path, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> AsyncIterator[DataDir]:
    """``slackwater up`` with these options, ready, with a data directory and a port of its own; its log goes into the
    folder. Raises ServerError where it does not start, with the ends of its processes' logs, which are gone after."""
    with TemporaryDirectory(prefix="data-", dir=folder, ignore_cleanup_errors=True) as store:
        data_dir = DataDir(Path(store))
        program = ("-c", "from services.local.cli import main; main()", "up")
        every = {**options, "port": free_port(), "data-dir": data_dir.path}
        command = Command(name, python_command(program, every), folder / UP_LOG, dict(environ or {}))
        is_ready = False
        try:
            async with running(command, lambda: _is_up(data_dir)):
                is_ready = True
                yield data_dir
        except ServerError as error:
            if is_ready:
                raise
            raise ServerError(f"{error}\n{ends_of_logs(data_dir)}") from error


@asynccontextmanager
async def running(command: Command, is_ready: Callable[[], bool]) -> AsyncIterator[Process]:
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
        yield process
    finally:
        await process.terminate(GRACE_S)
        ended.cancel()


def ends_of_logs(data_dir: DataDir) -> str:
    """The last lines of each process's log, under its name."""
    logs = sorted(data_dir.log("gateway").parent.glob("*.log"))
    return "\n".join(f"the end of {log.name}:\n{tail(log)}" for log in logs)


def python_command(program: tuple[str, ...], options: Mapping[str, object]) -> tuple[str, ...]:
    """This Python with a program and its options."""
    return (sys.executable, *program, *(word for name, value in options.items() for word in (f"--{name}", str(value))))


def _is_up(data_dir: DataDir) -> bool:
    try:
        return data_dir.read_stack().ready
    except StackError:
        return False
