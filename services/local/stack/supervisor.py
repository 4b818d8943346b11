"""`slackwater up`: a whole stack on one machine, kept running until a signal, then drained.

In order: the bus, the model's folder, the services. A service that ends by itself is started again. On the first
SIGINT or SIGTERM everything is drained in the reverse direction of the work, on the second it is killed.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from services.local.stack.catalogue import gateway_access
from services.local.stack.data_dir import DataDir, ProcessEntry, StackFile
from services.local.stack.gpu_pinning import shares_of_models
from services.local.stack.keys import Keys
from services.local.stack.machine import free_port, require_free
from services.local.stack.options import StackOptions
from services.local.stack.processes.keeper import Keeper
from services.local.stack.processes.process import Command, Process, describe_exit
from services.local.stack.progress import Progress
from services.local.stack.readiness import require_own_bus, wait_ready
from services.local.stack.service_commands import (
    ModelPlace,
    nats_command,
    own_address,
    prepare_command,
    service_commands,
)
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import SlackwaterError, StackError

MAX_CRASHES_BEFORE_READY = 3  # of one service, however long it takes to fail
SAME_SIGNAL_S = 0.5  # timeout(1) and some shells deliver one request to the process and again to its group
KILLED_STATUS = 130  # as a shell reports an interrupted command
WatchServing = Callable[[BusAddress, Progress], Coroutine[Any, Any, None]]

DRAIN_ORDER = ("gateway", "executor", "offline-queue", "profiler", "predictor", "nats-server")


class Supervisor:
    """One stack. ``run`` is its whole life."""

    def __init__(
        self, options: StackOptions, progress: Progress, announce: Callable[[str], None], watch: WatchServing
    ) -> None:
        """``announce`` gets the ready line. ``watch`` tells a progress that can be redrawn what the stack does, from
        then on and until it ends."""
        self._options = options
        self._progress = progress
        self._announce = announce
        self._watch = watch
        self._data_dir = DataDir(options.data_dir)
        self._keepers: list[Keeper] = []
        self._keeping = asyncio.TaskGroup()
        self._ending = asyncio.Event()
        self._showing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._ready = False
        self._signalled_s: float | None = None
        self._killed = False
        self._address = BusAddress.of(options, BusRole.OPERATOR)

    async def run(self) -> int:
        """Until a signal; the exit status. Raises StackError where the stack cannot start."""
        try:
            require_free(self._options.host, self._options.port)
        except StackError:
            self._data_dir.require_unused()  # by a stack that has the port too: then that is what is told
            raise
        with self._data_dir.locked():
            self._handle_signals()
            try:
                async with self._keeping:
                    starting = self._keeping.create_task(self._or_fail(self._start()))
                    await self._ending.wait()
                    for keeper in self._keepers:
                        keeper.retire()
                    starting.cancel()
                    await asyncio.wait((starting,))
                    await self._drain()
            finally:
                self._progress.close()
                self._data_dir.remove_stack()
        if self._failure is not None:
            raise self._failure
        return KILLED_STATUS if self._killed else 0

    def on_started(self, keeper: Keeper) -> None:
        """A Keeper's word."""
        self._write_stack()
        if keeper.starts > 1:
            self._progress.note(f"{keeper.name} started again (pid {keeper.pid})")

    def on_crashed(self, keeper: Keeper, status: int | None, delay_s: float) -> None:
        """A Keeper's word. A service that cannot even start ends the whole stack."""
        self._write_stack()
        ended = f"{keeper.name} could not be started ({keeper.last_words})"
        if status is not None:
            ended = f"{keeper.name} ended by itself ({describe_exit(status)})"
        if not self._ready and keeper.crashes >= MAX_CRASHES_BEFORE_READY:
            quoted = _quote(keeper.command, keeper.last_words)
            self._fail(StackError(f"{ended}, {keeper.crashes} times before the stack was ready\n{quoted}"))
            return
        self._progress.note(f"{ended}; starting it again in {delay_s:.1f} s (log: {keeper.command.log})")

    async def _or_fail(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except SlackwaterError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StackError(f"cannot start in {self._data_dir.path}: {error}"))

    async def _start(self) -> None:
        if not self._address.url:
            port = free_port()
            self._progress.step("starting the bus")
            self._keep([nats_command(self._data_dir, port)])
            self._address = own_address(self._data_dir, port)
        bus = await Bus.connect(self._address, "supervisor")
        self._write_stack()  # a bus that was there has started no process of ours
        try:
            await (await Keys.on(bus)).require_any(gateway_access(self._options, os.environ))
            models = self._options.models
            paths = [await self._prepare_model(model) for model in models]
            shares = await asyncio.to_thread(shares_of_models, self._options, os.environ)
            places = [ModelPlace(*each) for each in zip(models, paths, shares, strict=True)]
            commands = service_commands(self._data_dir, self._address, places)
            names = [command.name for command in commands]
            await require_own_bus(bus, names)
            self._keep(commands)
            await wait_ready(bus, self._options.url, names, self._progress)
        finally:
            await bus.close()
        self._ready = True
        self._write_stack()
        self._progress.close()
        self._announce(f"ready {self._options.url} model {self._options.served_name}")
        if self._progress.redraws:
            self._showing = self._keeping.create_task(self._watch(self._address, self._progress))

    async def _prepare_model(self, options: StackOptions) -> Path:
        """The model's folder. Raises StackError with the end of the log."""
        self._progress.step(f"preparing the model {options.model} (about a minute the first time)")
        command = prepare_command(options, self._data_dir)
        process = await Process.start(command, capture_stdout=True)
        try:
            printed = (await process.output()).strip()
            status = await process.wait()
        finally:
            process.kill()
        folder = printed.rpartition("\n")[2].strip()
        if status != 0 or not folder:
            quoted = _quote(command, process.last_words())
            raise StackError(f"the model {options.model} cannot be used\n{quoted}")
        return Path(folder)

    def _keep(self, commands: Sequence[Command]) -> None:
        keepers = [Keeper(command, self) for command in commands]
        self._keepers += keepers
        for keeper in keepers:
            self._keeping.create_task(self._or_fail(keeper.keep()), name=keeper.name)

    def _fail(self, failure: Exception) -> None:
        """The first failure decides; then the stack ends."""
        self._failure = self._failure or failure
        self._ending.set()

    async def _drain(self) -> None:
        """End the services, each only when those that send it work are gone."""
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.wait((self._showing,))
        self._progress.step("stopping")
        for prefix in DRAIN_ORDER:
            await asyncio.gather(*(keeper.stop() for keeper in self._keepers if keeper.name.startswith(prefix)))

    def _write_stack(self) -> None:
        """A stack that was ready goes on without: its disk may be full for a while."""
        processes = {keeper.name: ProcessEntry(keeper.pid, keeper.starts) for keeper in self._keepers}
        options, bus = self._options, self._address
        about = options.url, options.served_name, options.engine, self._ready
        try:
            self._data_dir.write_stack(StackFile(os.getpid(), bus.url, *about, processes, bus.creds, bus.ca))
        except StackError as error:
            if self._ready:
                self._progress.note(str(error))
            else:
                self._fail(error)

    def _handle_signals(self) -> None:
        """For as long as the event loop lasts."""
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants it ignored
            signals.append(signal.SIGHUP)
        for signum in signals:
            asyncio.get_running_loop().add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._signalled_s is None:
            self._signalled_s = now_s
            self._ending.set()
        elif now_s - self._signalled_s > SAME_SIGNAL_S:
            self._killed = True
            self._progress.note("killing what is left")
            for keeper in self._keepers:
                keeper.kill()


def _quote(command: Command, last_words: str) -> str:
    return f"the end of {command.log}:\n{last_words}"
