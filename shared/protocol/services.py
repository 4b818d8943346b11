"""What any process tells of itself."""

import msgspec


class LeaseHolder(msgspec.Struct, frozen=True):
    """Who holds a lease: a value of LEASES_BUCKET. ``holder_id`` is the process's own."""

    holder_id: str
    pid: int
    host: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


class ServiceStatus(msgspec.Struct, frozen=True):
    """A process's answer to a ping."""

    name: str  # gateway, offline-queue, predictor, profiler, executor-0 ...
    pid: int
    health: str  # "ok", or what is wrong
    details: dict[str, float | int | str | bool | None]
    started_s: float = 0.0  # unix time
