"""Whatever is asked of it, the server in memory answers as nats-server does; ``compare.py`` asks for longer."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import running_nats
from tests.simulation.nats.compare import answers_of_both
from tests.simulation.nats.operations import Operation, runs


@pytest.fixture(scope="module")
def real_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nats(tmp_path_factory.mktemp("nats")) as url:
        yield url


@settings(max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(operations=runs)
def test_random_operations(real_url: str, operations: list[Operation]) -> None:
    real, memory = asyncio.run(answers_of_both(real_url, operations))
    for operation, one, other in zip(operations, real, memory, strict=True):
        assert other == one, operation
