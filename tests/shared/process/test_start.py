"""A service that is told to end before it has started: a process of its own, and a bus that is not there."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.programs import Program

WAIT_S = 60.0


class Stuck:
    """In the place of a bus: says nothing, or what the bus says until somebody asks its storage for something."""

    def __init__(self, nats_url: str | None) -> None:
        self._nats_url = nats_url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_asked = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        held: list[socket.socket] = []
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                held.append(client)
                if self._nats_url is None:
                    self.is_asked.set()
                    continue
                bus = socket.create_connection(("127.0.0.1", urlsplit(self._nats_url).port))
                for ends in ((client, bus), (bus, client)):
                    threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if b"$JS.API." in data:
                    self.is_asked.set()
                    return
                sink.sendall(data)


@pytest.fixture(params=["no bus", "no storage"])
def stuck(request: pytest.FixtureRequest, nats_url: str) -> Iterator[Stuck]:
    made = Stuck(nats_url if request.param == "no storage" else None)
    yield made
    made.close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_service_hears_that_it_is_to_end_while_it_starts(
    stuck: Stuck, signum: signal.Signals, tmp_path: Path
) -> None:
    """Where it does not, it ends with an error: what it waits for never comes."""
    log = tmp_path / "predictor.log"
    service = Program("services.predictor", "--nats", stuck.url, stdout=log, stderr=log)
    try:
        assert stuck.is_asked.wait(WAIT_S), log.read_text()
        service.send_signal(signum)
        assert service.wait(WAIT_S) == 0, log.read_text()
        assert "stopped by an error" not in log.read_text()
    finally:
        service.kill()
        service.wait()
