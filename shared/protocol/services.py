"""What any process tells of itself."""

import msgspec


class ServiceStatus(msgspec.Struct, frozen=True):
    """A process's answer to a ping."""

    name: str  # gateway, offline-queue, predictor, profiler, executor-0 ...
    pid: int
    health: str  # "ok", or what is wrong
    details: dict[str, float | int | str | bool | None]
