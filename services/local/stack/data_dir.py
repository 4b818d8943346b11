"""A stack's data directory: its lock, its stack file, the logs and the bus's store; and the bus of a stack."""

import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from services.local.stack.private import make_private
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import BusError, ConfigError, StackError
from shared.json_text import json_text
from shared.protocol.codec import decode_record

CONNECT_S = 2.0
LOCK_TRIES, LOCK_RETRY_S = 5, 0.05  # who looks at a stack holds its lock for a moment

ProcessId = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ProcessEntry(msgspec.Struct, frozen=True):
    """One service of a stack. ``pid`` is None between a crash and the next start."""

    pid: ProcessId | None
    starts: int


class StackFile(msgspec.Struct, frozen=True):
    """What ``slackwater status`` and scripts need to know about a running stack."""

    supervisor_pid: ProcessId
    nats_url: str
    http_url: str
    model: str
    engine: str
    ready: bool
    processes: dict[str, ProcessEntry]
    nats_creds: str = ""
    nats_ca: str = ""

    @property
    def bus(self) -> BusAddress:
        """As whoever operates the stack is let in."""
        return BusAddress(self.nats_url, self.nats_creds, self.nats_ca, BusRole.OPERATOR)


class DataDir:
    """The folder of one stack. Made on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.nats_store = self.path / "nats"
        self.bus_folder = self.path / "bus"  # what lets processes into a bus of the stack's own: a BusFolder
        self._stack_file = self.path / "stack.json"

    def log(self, name: str) -> Path:
        """The log file of one service."""
        return self.path / "logs" / f"{name}.log"

    def make_private(self) -> None:
        """What the bus stores is for this user alone. Raises StackError."""
        try:
            make_private(self.nats_store)
        except OSError as error:
            raise StackError(f"cannot use {self.nats_store}: {error.strerror}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory; the kernel lets go of it when this process ends in any way. A stack file that is there
        has been left by one that was killed, and goes. Raises StackError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+b", buffering=0)
        except OSError as error:
            raise self._unusable(error) from error
        with lock:
            if not _taken(lock, fcntl.LOCK_EX, tries=LOCK_TRIES):
                raise self._used_by(_holder_in(lock))
            try:
                lock.truncate(0)
                lock.write(f"{os.getpid()}\n".encode())
            except OSError as error:
                raise self._unusable(error) from error
            self.remove_stack()
            yield

    def write_stack(self, stack: StackFile) -> None:
        """Replace the stack file in one step; one whose URL of the bus lets in is for this user alone. Raises
        StackError."""
        fresh = self._stack_file.with_suffix(".tmp")
        try:
            if stack.bus.shown != stack.nats_url:
                fresh.touch()
                fresh.chmod(0o600)
            fresh.write_text(json_text(stack) + "\n")
            fresh.replace(self._stack_file)
        except OSError as error:
            raise StackError(f"cannot write {self._stack_file}: {error.strerror}") from error

    def read_stack(self) -> StackFile:
        """Raises StackError where no stack runs here."""
        try:
            stack = decode_record(self._stack_file.read_bytes(), StackFile)
        except (FileNotFoundError, NotADirectoryError):
            raise StackError(f"no stack runs in {self.path}; start one with: slackwater up") from None
        except (OSError, msgspec.DecodeError) as error:
            raise StackError(f"{self._stack_file} cannot be read: {error}") from error
        if self.holder() is None:
            raise StackError(
                f"the stack in {self.path} is gone (its supervisor had pid {stack.supervisor_pid}); "
                "start it with: slackwater up"
            )
        return stack

    def remove_stack(self) -> None:
        """Where it cannot be removed, the lock still tells that no stack runs."""
        with contextlib.suppress(OSError):
            self._stack_file.unlink()

    def holder(self) -> str | None:
        """The pid of who holds it, by the lock: a number alone may be another process's by now. None where nobody does.
        Raises OSError."""
        try:
            with (self.path / "lock").open("rb") as lock:
                return None if _taken(lock, fcntl.LOCK_SH) else _holder_in(lock)
        except FileNotFoundError:
            return None

    def require_unused(self) -> None:
        """Raises StackError where another stack has it, as far as one can see."""
        with contextlib.suppress(OSError):
            if (holder := self.holder()) is not None:
                raise self._used_by(holder)

    def _used_by(self, holder: str) -> StackError:
        return StackError(f"another stack (pid {holder}) uses {self.path}; stop it, or choose another with --data-dir")

    def _unusable(self, error: OSError) -> StackError:
        return StackError(f"cannot use the data directory {self.path}: {error.strerror}")


def _holder_in(lock: IO[bytes]) -> str:
    lock.seek(0)
    return lock.read().decode(errors="replace").strip() or "unknown"


def _taken(lock: IO[bytes], kind: int, tries: int = 1) -> bool:
    """The lock of an open file, until that is closed. Who only looks holds it for a moment."""
    for attempt in range(tries):
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt < tries - 1:
                time.sleep(LOCK_RETRY_S)
        else:
            return True
    return False


def stack_on(data_dir: Path, asked: BusAddress | None) -> tuple[StackFile | None, BusAddress]:
    """The stack of the data directory, None where the given bus is another one's; and where its bus is. Raises
    StackError where neither is there."""
    try:
        stack = DataDir(data_dir).read_stack()
    except StackError:
        if asked is not None:
            return None, asked
        raise
    if asked is None or asked.url == stack.nats_url:
        return stack, asked if asked is not None and asked.creds else stack.bus
    return None, asked


@contextlib.asynccontextmanager
async def bus_at(address: BusAddress, name: str, within_s: float = CONNECT_S) -> AsyncIterator[Bus]:
    """A connection that ``name`` holds. Raises StackError where none answers, or it cannot be let in."""
    try:
        bus = await Bus.connect(address, name, within_s)
    except (BusError, ConfigError) as error:
        raise StackError(f"the stack does not answer: {error}") from error
    try:
        yield bus
    finally:
        await bus.close()
