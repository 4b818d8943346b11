"""What any process tells of itself."""

import re

import msgspec

OFFLINE_QUEUE = "offline-queue"
STANDBY = "-standby"  # at the end of the name of one that waits
UNREADABLE = re.compile(r"[^A-Za-z0-9]+")


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

    @property
    def is_well(self) -> bool:
        return is_well(self.name, self.health)


def short_name(model_name: str) -> str:
    """In names of processes: the last part of a path or a hub id, as a-model-0-5b."""
    last = [part for part in model_name.split("/") if part][-1:]
    return UNREADABLE.sub("-", "".join(last)).strip("-").lower() or "model"


def queue_name(model_name: str, has_others: bool) -> str:
    """Of the process that is a model's offline-queue; ``has_others``: the stack has more models."""
    return f"{OFFLINE_QUEUE}-{short_name(model_name)}" if has_others else OFFLINE_QUEUE


def queue_lease(model_token: str) -> str:
    """Of who is the offline-queue of the model whose name has this token."""
    return f"{OFFLINE_QUEUE}.{model_token}"


def is_queue_at_work(name: str) -> bool:
    """Of any model."""
    return name.startswith(OFFLINE_QUEUE) and not name.endswith(STANDBY)


def is_well(name: str, health: str) -> bool:
    """Of a process of this name that says so of its health. One that stands by says whom it waits for, as it should."""
    return health == "ok" or name.endswith(STANDBY)
