"""Fixtures that every suite shares: a real nats-server, and a connection to it."""

import contextlib
import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Triton reads this when it is first imported: without a GPU its interpreter runs the kernels in their tests.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of its small products in numpy: threads only get in the way

# A shell has what it starts in the background ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# OpenMP's settings, before a test imports torch: its threads, of several tests at a time, would spin for one another
import services.executor.engines.torch.threads  # noqa: F401
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.machine import free_port
from shared.bus import Bus
from shared.settings.config_file import FILE_NAME
from shared.text.tokenizer import Tokenizer
from tests.programs import Program
from tests.shallow_model import make_shallow

TESTS = Path(__file__).parent
NO_CONFIG = tempfile.TemporaryDirectory(prefix="no-config-")

# an example that waits for a core says nothing about the code
settings.register_profile("slackwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slackwater")

# of their time tests there spend most on waiting: for processes, for what comes late or never
WAITING = tuple(TESTS / name for name in ("faults", "integration", "services", "shared/bus"))
COMPUTING = TESTS / "services/executor/engines"


def pytest_configure() -> None:
    """No setting of whoever runs the tests is any of theirs, but for where models are kept."""
    if Path(FILE_NAME).exists():
        raise pytest.UsageError(f"what tests start would read {FILE_NAME} here: move it away while they run")
    for name in [each for each in os.environ if each.startswith("SLACKWATER_") and each != "SLACKWATER_CACHE"]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = NO_CONFIG.name


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported stays: no collection of garbage looks at it while there is more and more of it, nor later."""
    gc.disable()
    try:
        import_own_files(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def import_own_files(session: pytest.Session) -> None:
    """Of several workers, which all import all files, each begins with files of its own: pytest rewrites the asserts of
    a file when it is first imported, and who comes to it later finds that on the disk."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    paths = [session.config.invocation_params.dir / arg.partition("::")[0] for arg in session.config.args]
    files = sorted({file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # said when it is collected
            importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait and files that compute come in turn, so that at no time all workers do the same. Of either, those
    selected that take minutes come first, and those of shared/ last: none begins late that the others have to wait for.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    files = sorted(
        {item.path: None for item in items}, key=lambda path: (path not in slow, TESTS / "shared" in path.parents)
    )
    places: dict[Path, float] = {}
    for waits in (True, False):
        kind = [path for path in files if is_waiting(path) == waits]
        places |= {path: (number + 0.5) / len(kind) for number, path in enumerate(kind)}
    items.sort(key=lambda item: places[item.path])


def is_waiting(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in WAITING) and not path.is_relative_to(COMPUTING)


def nats_server_binary() -> str:
    beside_python = Path(sys.executable).parent / "nats-server"
    return str(beside_python) if beside_python.exists() else shutil.which("nats-server") or "nats-server"


def wait_for_port(port: int, process: "subprocess.Popen[bytes] | Program", timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"process ended with {process.returncode}"
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens on port {port}")


@contextlib.contextmanager
def running_nats(store: Path) -> Iterator[str]:
    """The URL of a nats-server with JetStream, its store in that folder."""
    port = free_port()
    command = [nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """A fresh nats-server with JetStream, its store in the test's folder."""
    with running_nats(tmp_path / "nats") as url:
        yield url


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    connected = await Bus.connect(nats_url, "test")
    await connected.ensure_streams()
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The default model, prepared once into the cache."""
    return prepare(DEFAULT_MODEL, default_cache_dir(), lambda _: None)


@pytest.fixture(scope="session")
def shallow_model(model_folder: Path) -> Iterator[Path]:
    """The folder of the default model with four of its layers; by its name a stack keeps what it has measured."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"shallow-{model_folder.name}"
        made.mkdir()
        yield make_shallow(model_folder, made)


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)
