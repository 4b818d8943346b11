"""Of what a stack consists: the names of its processes are known before it is there, so that faults can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NATS = "nats-server"
NUM_QUEUES = 2  # one is at work, one stands by


@dataclass(frozen=True, slots=True)
class Shape:
    """``num_strict``: of the executors, those of the strict pool, to which requests move with their KV; 0: no pools.
    ``has_disk``: nats-server's store is a disk of its own; ``has_hosts``: each executor is on a host of its own, with a
    network for what executors send each other; ``before``: where the code of the version is that all services have at
    first, None: this one."""

    engine: str = "sim"
    num_executors: int = 3
    num_strict: int = 0
    num_gateways: int = 2
    has_disk: bool = False
    has_hosts: bool = False
    before: Path | None = None

    @property
    def executors(self) -> tuple[str, ...]:
        return tuple(f"executor-{number}" for number in range(self.num_executors))

    @property
    def gateways(self) -> tuple[str, ...]:
        return tuple(f"gateway-{number}" for number in range(self.num_gateways))

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(f"offline-queue-{number}" for number in range(NUM_QUEUES))

    @property
    def services(self) -> tuple[str, ...]:
        """All that are on the bus."""
        return ("predictor", "profiler", *self.queues, *self.executors, *self.gateways)

    @property
    def names(self) -> tuple[str, ...]:
        return (NATS, *self.services)
