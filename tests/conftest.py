"""Fixtures that every suite shares: a real nats-server, and a connection to it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

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
from shared.text.tokenizer import Tokenizer
from tests.programs import Program
from tests.shallow_model import make_shallow

TESTS = Path(__file__).parent

# an example that waits for a core says nothing about the code
settings.register_profile("slackwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slackwater")

LONG_FILES = ("integration", "benchmarks", "services")  # folders


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of those selected, files that take minutes come first, so that none of them begins when the others end."""
    rank = {name: number for number, name in enumerate(LONG_FILES)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, rank.get(item.path.relative_to(TESTS).parts[0], len(rank))))


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
