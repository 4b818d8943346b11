"""Everything about the bus holds with a real nats-server, and with the one in memory that simulations use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.bus.servers import Server, running


@pytest.fixture(params=["nats-server", "memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A fresh one."""
    with running(request.param, tmp_path / "nats") as started:
        yield started


@pytest.fixture
def nats_url(server: Server) -> str:
    return server.url
