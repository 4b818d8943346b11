import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from shared.process.tracing import CLOSE_S, Tracing

NUM_SPANS = 1024  # told in two messages, of which each is waited for


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a collector that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"


def test_a_collector_that_is_silent_keeps_no_process_from_its_end(silent_url: str) -> None:
    tracing = Tracing(silent_url, "gateway")
    for _ in range(NUM_SPANS):
        tracing.note("generate", 1.0, 2.0, "")
    began_s = time.monotonic()
    tracing.close()
    assert time.monotonic() - began_s < CLOSE_S + 2


@pytest.mark.parametrize("settings", [GatewaySettings, ExecutorSettings])
def test_an_endpoint_that_no_span_could_be_sent_to_is_refused(settings: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="https"):
        msgspec.convert({"model_path": "m", "trace_endpoint": "localhost:4318"}, settings)
