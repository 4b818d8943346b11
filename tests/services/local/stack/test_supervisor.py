"""The pieces of a local stack's supervisor, with real child processes."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from services.local.commands.status.top import show_essentials
from services.local.stack.data_dir import DataDir, ProcessEntry, StackFile
from services.local.stack.machine import free_port, require_free
from services.local.stack.options import StackOptions
from services.local.stack.processes import keeper as keepers
from services.local.stack.processes import process as processes
from services.local.stack.processes.keeper import Backoff, Keeper
from services.local.stack.processes.process import Command, Process, describe_exit, open_log, tail
from services.local.stack.service_commands import nats_command, own_address
from services.local.stack.supervisor import Supervisor
from shared.bus import Bus
from shared.bus.permissions import BusRole
from shared.errors import StackError
from shared.protocol import subjects
from tests.conftest import wait_for_port

SERVE = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
)
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
CRASH = "import sys; print('no such setting', file=sys.stderr); sys.exit(3)"


class RecordingWatcher:
    """Keeps what keepers say, and lets a test wait for it."""

    def __init__(self) -> None:
        self.pids: list[int | None] = []
        self.crashes: list[tuple[str, int | None, float]] = []
        self._changed = asyncio.Event()

    def on_started(self, keeper: Keeper) -> None:
        self.pids.append(keeper.pid)
        self._changed.set()

    def on_crashed(self, keeper: Keeper, status: int | None, delay_s: float) -> None:
        self.crashes.append((keeper.name, status, delay_s))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class SilentProgress:
    redraws = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str, detail: str = "") -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None:
        pass


def python(name: str, code: str, logs: Path) -> Command:
    return Command(name, (sys.executable, "-c", code), logs / f"{name}.log")


async def printed(command: Command, text: str = "up") -> None:
    """Wait until the child has written ``text``."""
    await poll_until(lambda: text in tail(command.log))


def is_running(pid: int | None) -> bool:
    return pid is not None and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(pid: int) -> None:
    await poll_until(lambda: not is_running(pid))


async def poll_until(condition: Callable[[], bool]) -> None:
    """For what gives no event: a log file, a process that is not our child."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def keeping(*keepers: Keeper) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for keeper in keepers:
            group.create_task(keeper.keep())
        yield
        for keeper in keepers:
            await keeper.stop()


def test_backoff_doubles_up_to_its_bound() -> None:
    backoff = Backoff()
    assert [backoff.next_delay_s(uptime_s=1.0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert backoff.failures == 8


def test_backoff_begins_anew_after_a_healthy_run() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay_s(uptime_s=0.1)
    assert backoff.next_delay_s(uptime_s=30.0) == 0.2
    assert backoff.failures == 1


def test_backoff_stays_finite_after_very_many_failures() -> None:
    backoff = Backoff()
    assert {backoff.next_delay_s(0.0) for _ in range(5000)} <= {0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0}


def test_a_second_stack_is_kept_out_of_a_data_directory_and_told_who_is_in(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "data")
    with data_dir.locked():
        with pytest.raises(StackError, match=rf"pid {os.getpid()}\) uses"), DataDir(tmp_path / "data").locked():
            pass
        with DataDir(tmp_path / "other").locked():
            assert (tmp_path / "other" / "lock").exists()
    with data_dir.locked():
        assert (data_dir.path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_of_a_killed_holder_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from services.local.stack.data_dir import DataDir\n"
        "with DataDir(Path(sys.argv[1])).locked():\n    print('held', flush=True); signal.pause()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(StackError, match=f"pid {holder.pid}"), DataDir(tmp_path).locked():
        pass
    holder.kill()
    holder.communicate()
    with DataDir(tmp_path).locked():
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_an_unusable_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="cannot use the data directory"), DataDir(tmp_path / "file" / "data").locked():
        pass


def make_stack_file(supervisor_pid: int) -> StackFile:
    return StackFile(
        supervisor_pid=supervisor_pid,
        nats_url="nats://127.0.0.1:4222",
        http_url="http://127.0.0.1:8000",
        model="smollm2-135m-instruct",
        engine="sim",
        ready=True,
        processes={"gateway": ProcessEntry(12, 1), "profiler": ProcessEntry(None, 3)},
    )


def test_the_stack_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    stack = make_stack_file(os.getpid())
    with data_dir.locked():
        data_dir.write_stack(stack)
        assert data_dir.read_stack() == stack
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "stack.json"]
    data_dir.remove_stack()
    with pytest.raises(StackError, match="no stack runs in"):
        data_dir.read_stack()


@pytest.mark.parametrize(("login", "is_private"), [("", False), ("bob:hunter2@", True)])
def test_a_stack_file_that_lets_in_to_the_bus_is_for_this_user_alone(
    tmp_path: Path, login: str, is_private: bool
) -> None:
    stack = msgspec.structs.replace(make_stack_file(1), nats_url=f"nats://{login}far:4222")
    DataDir(tmp_path).write_stack(stack)
    assert ((tmp_path / "stack.json").stat().st_mode & 0o077 == 0) == is_private


def test_a_stack_whose_supervisor_is_gone_is_no_stack(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    DataDir(tmp_path).write_stack(make_stack_file(ended.pid))
    with pytest.raises(StackError, match=f"is gone.*pid {ended.pid}"):
        DataDir(tmp_path).read_stack()


def test_what_a_killed_stack_has_left_is_not_taken_for_the_one_that_starts(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    data_dir.write_stack(make_stack_file(2**31 - 1))
    with data_dir.locked():
        assert data_dir.holder() == f"{os.getpid()}"
        with pytest.raises(StackError, match="no stack runs in"):
            data_dir.read_stack()
    assert data_dir.holder() is None


def test_a_damaged_stack_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(StackError, match=r"stack\.json cannot be read"):
        DataDir(tmp_path).read_stack()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_stack_file_of_another_user_is_named(tmp_path: Path) -> None:
    DataDir(tmp_path).write_stack(make_stack_file(os.getpid()))
    os.seteuid(65534)
    try:
        with pytest.raises(StackError, match=r"stack\.json cannot be read: .*Permission denied"):
            DataDir(tmp_path).read_stack()
    finally:
        os.seteuid(0)


def test_a_grown_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 10)
    path = tmp_path / "logs" / "gateway.log"
    for text in (b"first run, too long\n", b"second\n", b"third\n"):
        with open_log(path) as log:
            log.write(text)
    assert path.read_bytes() == b"second\nthird\n"
    assert path.with_name("gateway.log.1").read_bytes() == b"first run, too long\n"
    assert tail(path, max_lines=1) == "third"


async def test_a_log_is_bounded_while_its_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 100_000)
    monkeypatch.setattr(keepers, "LOG_PERIOD_S", 0.01)
    command = python("talks", "while True: print('x' * 999, flush=True)", tmp_path)
    aside = command.log.with_name(f"{command.log.name}.1")
    async with keeping(keeper := Keeper(command, RecordingWatcher())):
        await poll_until(aside.exists)
        aside.unlink()
        await poll_until(aside.exists)
        assert keeper.starts == 1


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port}.*--port"):
            require_free("127.0.0.1", port)
        options = StackOptions(port=port, data_dir=tmp_path / "data")
        with pytest.raises(StackError, match=f"port {port}"):
            asyncio.run(Supervisor(options, SilentProgress(), print, show_essentials).run())
    assert not (tmp_path / "data").exists()
    require_free("127.0.0.1", port)


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(StackError, match=r"--host no-such-host\.invalid"):
        require_free("no-such-host.invalid", 8000)


async def test_the_bus_starts_with_durable_streams_and_large_messages(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    port = free_port()
    watcher = RecordingWatcher()
    keeper = Keeper(nats_command(data_dir, port), watcher)
    received: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
    async with keeping(keeper):
        address = msgspec.structs.replace(own_address(data_dir, port), role=BusRole.OFFLINE_QUEUE)
        bus = await Bus.connect(address, "test")
        await bus.ensure_streams()
        await bus.subscribe(subjects.inbox("large"), bytes, received.put)
        await bus.publish(subjects.inbox("large"), b"x" * 4_000_000)
        assert len(await asyncio.wait_for(received.get(), 20)) == 4_000_000
        await bus.close()
    assert (tmp_path / "nats" / "jetstream").is_dir()


async def test_the_bus_starts_in_a_folder_of_any_name(tmp_path: Path) -> None:
    data_dir, port = DataDir(tmp_path / 'dàta of "Jürgen", \\ $HOME'), free_port()
    async with keeping(Keeper(nats_command(data_dir, port), RecordingWatcher())):
        bus = await Bus.connect(own_address(data_dir, port), "test")
        await bus.close()


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem", "server.pem"])
def test_a_damaged_certificate_of_the_bus_is_named_and_made_anew_once_it_is_gone(tmp_path: Path, name: str) -> None:
    data_dir = DataDir(tmp_path)
    nats_command(data_dir, 4222)
    if name == "ca-key.pem":  # it is asked for where another is signed
        (data_dir.bus_folder / "server.pem").unlink()
    damaged = data_dir.bus_folder / name
    damaged.write_bytes(b"")
    with pytest.raises(StackError, match=f"{name} is damaged; remove it"):
        nats_command(data_dir, 4222)
    damaged.unlink()
    nats_command(data_dir, 4222)


def test_the_bus_acknowledges_what_is_on_the_disk(tmp_path: Path) -> None:
    """As the server itself says."""
    monitor = free_port()
    command = nats_command(DataDir(tmp_path), free_port())
    server = subprocess.Popen([*command.argv, "-m", str(monitor)], stderr=subprocess.DEVNULL)
    try:
        wait_for_port(monitor, server)
        assert httpx.get(f"http://127.0.0.1:{monitor}/jsz?config=true").json()["config"]["sync_always"]
    finally:
        server.kill()
        server.wait()


async def test_a_killed_service_is_started_again(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    command = python("service", SERVE, tmp_path)
    keeper = Keeper(command, watcher, Backoff(first_s=0.01))
    async with keeping(keeper):
        await printed(command)
        first = keeper.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await watcher.until(lambda: len(watcher.pids) == 2)
        assert is_running(keeper.pid) and keeper.pid != first
        assert watcher.crashes == [("service", -signal.SIGKILL, 0.01)]
    assert not any(is_running(pid) for pid in watcher.pids)
    assert keeper.pid is None


async def test_what_could_be_started_before_is_tried_again(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    command = python("service", SERVE, tmp_path / "logs")
    keeper = Keeper(command, watcher, Backoff(first_s=0.01))
    async with keeping(keeper):
        await printed(command)
        command.log.parent.rename(tmp_path / "aside")
        command.log.parent.write_text("in the way of the log")
        keeper.kill()
        await watcher.until(lambda: len(watcher.crashes) >= 2)
        assert watcher.crashes[1][:2] == ("service", None) and "File exists" in keeper.last_words
        command.log.parent.unlink()
        await watcher.until(lambda: len(watcher.pids) == 2)
        assert is_running(keeper.pid)


async def test_a_service_whose_log_cannot_be_read_has_ended_as_any_other(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    command = python("service", SERVE, tmp_path)
    async with keeping(keeper := Keeper(command, watcher, Backoff(first_s=0.01))):
        await printed(command)
        command.log.unlink()
        command.log.mkdir()
        keeper.kill()
        await watcher.until(lambda: len(watcher.crashes) >= 1)
        assert watcher.crashes[0][:2] == ("service", -signal.SIGKILL)


async def test_a_stack_goes_on_where_its_file_cannot_be_written(tmp_path: Path) -> None:
    """Its disk may be full."""
    progress = SilentProgress()
    supervisor = Supervisor(StackOptions(data_dir=tmp_path), progress, print, show_essentials)
    supervisor._ready = True
    (tmp_path / "stack.tmp").mkdir()
    command = python("service", SERVE, tmp_path)
    async with keeping(keeper := Keeper(command, supervisor, Backoff(first_s=0.01))):
        await printed(command)
        keeper.kill()
        await poll_until(lambda: keeper.starts == 2)
    assert not supervisor._ending.is_set()
    assert f"cannot write {tmp_path / 'stack.json'}: Is a directory" in progress.lines


async def test_a_service_that_takes_long_to_fail_ends_a_stack_that_is_not_ready_all_the_same(tmp_path: Path) -> None:
    """As where a model that is read for a minute does not fit."""
    supervisor = Supervisor(StackOptions(data_dir=tmp_path), SilentProgress(), print, show_essentials)
    command = python("broken", CRASH, tmp_path)
    async with keeping(Keeper(command, supervisor, Backoff(first_s=0.01, healthy_after_s=0.0))), asyncio.timeout(60):
        await supervisor._ending.wait()
    assert "broken ended by itself (exit status 3), 3 times before the stack was ready" in str(supervisor._failure)
    assert "no such setting" in str(supervisor._failure)


async def test_each_crash_in_a_row_waits_longer(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    command = python("broken", CRASH, tmp_path)
    keeper = Keeper(command, watcher, Backoff(first_s=0.01))
    async with keeping(keeper):
        await watcher.until(lambda: len(watcher.crashes) >= 3)
    assert watcher.crashes[:3] == [("broken", 3, 0.01), ("broken", 3, 0.02), ("broken", 3, 0.04)]
    assert tail(command.log, 1) == "no such setting"


async def test_a_service_stops_while_it_waits_to_start_again(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    keeper = Keeper(python("broken", CRASH, tmp_path), watcher, Backoff(first_s=3600.0, max_s=3600.0))
    async with asyncio.timeout(60), keeping(keeper):
        await watcher.until(lambda: len(watcher.crashes) == 1)
    assert len(watcher.pids) == 1


async def test_a_retired_service_runs_on_but_is_not_started_again(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    command = python("service", SERVE, tmp_path)
    keeper = Keeper(command, watcher, Backoff(first_s=0.0))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        keeping_it = group.create_task(keeper.keep())
        await printed(command)
        keeper.retire()
        assert is_running(keeper.pid)
        keeper.kill()
        await keeping_it
    assert (len(watcher.pids), watcher.crashes) == (1, [])


async def test_a_drain_lets_services_end_by_themselves(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    commands = [python(f"service-{index}", SERVE, tmp_path) for index in range(3)]
    async with keeping(*(Keeper(command, watcher) for command in commands)):
        for command in commands:
            await printed(command)
    assert len(watcher.pids) == 3
    assert watcher.crashes == []
    assert not any(is_running(pid) for pid in watcher.pids)


async def test_a_service_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    command = python("deaf", DEAF, tmp_path)
    process = await Process.start(command)
    await printed(command)
    assert await process.terminate(grace_s=0.2) == -signal.SIGKILL
    assert not is_running(process.pid)


async def test_what_a_service_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, signal\n"
        f"child = subprocess.Popen([sys.executable, '-c', {DEAF!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print('child', child.pid, flush=True); signal.pause()"
    )
    command = python("parent", code, tmp_path)
    process = await Process.start(command)
    await printed(command, "child")
    child = int(tail(command.log, 1).split()[1])
    assert is_running(child)
    assert await process.terminate(grace_s=10.0) == -signal.SIGTERM
    await gone(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel ties processes on Linux only")
async def test_a_service_does_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from services.local.stack.processes.process import Command, Process\n"
        "async def main():\n"
        f"    process = await Process.start(Command('deaf', (sys.executable, '-c', {DEAF!r}), Path(sys.argv[1])))\n"
        "    print(process.pid, flush=True)\n"
        "    await process.wait()\n"
        "asyncio.run(main())"
    )
    log = tmp_path / "deaf.log"
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(log), stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    pid = int(await asyncio.wait_for(supervisor.stdout.readline(), 20))
    await printed(Command("deaf", (), log))
    assert is_running(pid)
    supervisor.kill()
    await supervisor.wait()
    await gone(pid)


async def test_a_captured_output_does_not_go_to_the_log(tmp_path: Path) -> None:
    code = "import sys; print('loading', file=sys.stderr); print('/the/folder')"
    command = python("prepare", code, tmp_path)
    process = await Process.start(command, capture_stdout=True)
    assert await process.output() == "/the/folder\n"
    assert await process.wait() == 0
    assert tail(command.log) == "loading"


def test_exits_are_described_in_words() -> None:
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-9) == "signal SIGKILL"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no signal of this number")
async def test_a_service_that_a_signal_without_a_name_ends_is_started_again(tmp_path: Path) -> None:
    progress = SilentProgress()
    supervisor = Supervisor(StackOptions(data_dir=tmp_path), progress, print, show_essentials)
    supervisor._ready = True
    command = python("service", SERVE, tmp_path)
    async with keeping(keeper := Keeper(command, supervisor, Backoff(first_s=0.01))):
        await printed(command)
        assert keeper.pid is not None
        os.kill(keeper.pid, 40)
        await poll_until(lambda: keeper.starts == 2)
    assert any("service ended by itself (signal 40); starting it again" in line for line in progress.lines)


async def test_a_stack_on_a_bus_that_is_there_can_be_asked_while_its_model_is_prepared(
    tmp_path: Path, nats_url: str
) -> None:
    """Which may take as long as a download does."""

    class AskingProgress(SilentProgress):
        def step(self, text: str, detail: str = "") -> None:
            if text.startswith("preparing"):
                found.append(DataDir(options.data_dir).read_stack())

    options, found = StackOptions(model=str(tmp_path / "none"), port=free_port(), data_dir=tmp_path, nats=nats_url), []
    with pytest.raises(StackError, match="none cannot be used"):
        await Supervisor(options, AskingProgress(), print, show_essentials).run()
    assert [(stack.nats_url, stack.ready, stack.processes) for stack in found] == [(nats_url, False, {})]


async def test_a_stack_whose_model_is_unknown_ends_with_the_reason(tmp_path: Path) -> None:
    options = StackOptions(model=str(tmp_path / "no-model"), port=free_port(), data_dir=tmp_path / "data")
    progress = SilentProgress()
    announced: list[str] = []
    with pytest.raises(StackError, match=r"no-model cannot be used\nthe end of .*prepare-model\.log:\n.*\S"):
        await Supervisor(options, progress, announced.append, show_essentials).run()
    assert announced == []
    assert not (tmp_path / "data" / "stack.json").exists()
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "nats-server"]
