"""Which subjects each role may send to and listen to.

A process is one of these to the bus, whoever runs it. The live subjects of executors and gateways are told apart by
what they are for, not by whose they are: any executor may speak as one. Replies go to inboxes with random names, of
which only those of its own role can be listened to.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from shared.protocol import subjects
from shared.protocol.subjects import ANY_MODEL


class BusRole(enum.StrEnum):
    """What a process is to the bus. ``operator``: ``slackwater`` on the command line, and who keeps a stack."""

    GATEWAY = "gateway"
    OFFLINE_QUEUE = "offline-queue"
    PREDICTOR = "predictor"
    PROFILER = "profiler"
    EXECUTOR = "executor"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects with NATS's wildcards."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()

    def __add__(self, other: Self) -> "Permissions":
        return Permissions((*self.publish, *other.publish), (*self.subscribe, *other.subscribe))


def permissions_of(role: BusRole) -> Permissions:
    """Sorted, each subject once."""
    found = sum(ROLES[role], INBOXES + Permissions(subscribe=(f"{inbox_prefix(role)}.>",)))
    return Permissions(tuple(sorted(set(found.publish))), tuple(sorted(set(found.subscribe))))


def inbox_prefix(role: BusRole) -> str:
    """Of the subjects on which a process of the role gets its answers."""
    return f"_INBOX.{role}"


def says(*names: str) -> Permissions:
    return Permissions(publish=names)


def hears(*names: str) -> Permissions:
    return Permissions(subscribe=names)


def _uses(stream: str) -> Permissions:
    """Make it where it is absent, and see how it is."""
    return says(f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.INFO.{stream}")


def _reads_stream(stream: str) -> Permissions:
    return _uses(stream) + says(
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        *(f"$JS.API.CONSUMER.{what}.{stream}.>" for what in ("CREATE", "INFO", "MSG.NEXT", "DELETE")),
        f"$JS.API.CONSUMER.CREATE.{stream}",
    )


def _clears(stream: str) -> Permissions:
    return says(f"$JS.API.STREAM.MSG.DELETE.{stream}", f"$JS.API.STREAM.PURGE.{stream}")


def reads(*buckets: str) -> Permissions:
    """Records of KV buckets."""
    return _sum(_reads_stream(f"KV_{bucket}") for bucket in buckets)


def writes(*buckets: str) -> Permissions:
    """Records of KV buckets, which it reads too."""
    changes = says(*(f"$KV.{bucket}.>" for bucket in buckets))
    return reads(*buckets) + changes + _sum(_clears(f"KV_{bucket}") for bucket in buckets)


def _sets(*streams: str) -> Permissions:
    """Settings of streams. They may have the server copy another stream into one of these, or what comes into one to
    any subject: whoever has this can read and write all that is stored."""
    return says(*(f"$JS.API.STREAM.UPDATE.{stream}" for stream in streams))


def _files() -> Permissions:
    """Contents of files, read and written."""
    stream = f"OBJ_{subjects.OBJECTS_BUCKET}"
    return _reads_stream(stream) + _clears(stream) + says(f"$O.{subjects.OBJECTS_BUCKET}.>")


def _keeps(stream: str, subject: str) -> Permissions:
    """All of a stream: what is stored in it, read, deleted."""
    return _reads_stream(stream) + _clears(stream) + says(subject)


def _sum(each: Iterable[Permissions]) -> Permissions:
    return sum(each, Permissions())


ANY = "*"
INBOXES = says("_INBOX.>")
ANSWERS_PINGS = hears(subjects.PING) + says(subjects.PING)  # health checks ask as the service that they ask for
HOLDS_LEASES = writes(subjects.LEASES_BUCKET) + says(subjects.holder(ANY)) + hears(subjects.holder(ANY))
ROLES: dict[BusRole, tuple[Permissions, ...]] = {
    BusRole.GATEWAY: (
        ANSWERS_PINGS,
        hears(subjects.tokens(ANY), subjects.alive(ANY)),
        hears(subjects.HEARTBEATS, subjects.STEPS, subjects.TAKEN, subjects.ONLINE_SERVED),
        says(subjects.inbox(ANY), subjects.online(ANY), subjects.cache(ANY), subjects.executor_alive(ANY)),
        says(ANY_MODEL.flex, ANY_MODEL.flex_drop),
        says(subjects.SLO_STATUS, subjects.drain(ANY), subjects.role(ANY)),
        writes(subjects.FILES_BUCKET, subjects.BATCHES_BUCKET, subjects.BATCH_KEYS_BUCKET),
        writes(subjects.RESPONSES_BUCKET, subjects.KEY_USAGE_BUCKET),
        _sets(f"KV_{subjects.RESPONSES_BUCKET}"),  # for how long it keeps them
        reads(subjects.API_KEYS_BUCKET, subjects.REVOKED_API_KEYS_BUCKET, subjects.EXECUTORS_BUCKET),
        reads(subjects.BUDGETS_BUCKET, subjects.LATENCY_MODELS_BUCKET, subjects.SLO_PROFILES_BUCKET),
        _uses(subjects.REQUESTS_STREAM),
        _files(),
    ),
    BusRole.OFFLINE_QUEUE: (
        ANSWERS_PINGS,
        HOLDS_LEASES,
        hears(ANY_MODEL.flex, ANY_MODEL.flex_drop, ANY_MODEL.sample),
        hears(subjects.HEARTBEATS, subjects.STEPS, subjects.TAKEN, subjects.inbox(ANY)),
        says(subjects.inbox(ANY), subjects.plan(ANY), subjects.cache(ANY), subjects.executor_alive(ANY)),
        says(subjects.tokens(ANY), subjects.alive(ANY)),
        writes(subjects.FILES_BUCKET, subjects.BATCHES_BUCKET, subjects.BATCH_KEYS_BUCKET),
        writes(subjects.KEY_USAGE_BUCKET, subjects.LEARNT_BUCKET),
        writes(subjects.EXECUTORS_BUCKET),
        reads(subjects.API_KEYS_BUCKET, subjects.BUDGETS_BUCKET, subjects.LATENCY_MODELS_BUCKET),
        _keeps(subjects.REQUESTS_STREAM, subjects.ALL_REQUESTS),
        _keeps(subjects.RESULTS_STREAM, subjects.RESULTS_AND_FAILURES),
        _files(),
        says(*(f"$JS.API.STREAM.INFO.{stream}" for stream in subjects.STORED)),
        _sets(*subjects.STORED),  # copies on further servers
    ),
    BusRole.PREDICTOR: (
        ANSWERS_PINGS,
        hears(subjects.LATENCY_SAMPLES, subjects.PREDICT),
        says(subjects.SAMPLES_WANTED),
        writes(subjects.LATENCY_MODELS_BUCKET),
        reads(subjects.EXECUTORS_BUCKET),
    ),
    BusRole.PROFILER: (
        ANSWERS_PINGS,
        hears(subjects.HEARTBEATS, subjects.ONLINE_SERVED, subjects.LATENCY_SAMPLES),
        hears(subjects.PROFILE, subjects.SLO_STATUS, subjects.SAMPLES_WANTED),
        says(subjects.measure(ANY), subjects.sample(ANY), ANY_MODEL.sample),
        writes(subjects.BUDGETS_BUCKET, subjects.SLO_PROFILES_BUCKET),
        reads(subjects.EXECUTORS_BUCKET, subjects.LATENCY_MODELS_BUCKET),
    ),
    BusRole.EXECUTOR: (
        ANSWERS_PINGS,
        HOLDS_LEASES,
        hears(subjects.inbox(ANY), subjects.plan(ANY), subjects.measure(ANY), subjects.cache(ANY)),
        hears(subjects.drain(ANY), subjects.role(ANY), subjects.executor_alive(ANY), subjects.HEARTBEATS),
        hears(subjects.offer(ANY), subjects.pull(ANY), subjects.kv_address(ANY)),
        says(subjects.heartbeat(ANY), subjects.step(ANY), subjects.sample(ANY), subjects.taken(ANY)),
        says(subjects.offer(ANY), subjects.pull(ANY), subjects.kv_address(ANY)),
        says(subjects.tokens(ANY), subjects.alive(ANY), subjects.RESULTS_AND_FAILURES),
        _uses(subjects.REQUESTS_STREAM),
        _uses(subjects.RESULTS_STREAM),
        writes(subjects.EXECUTORS_BUCKET),
        reads(subjects.BUDGETS_BUCKET, subjects.LATENCY_MODELS_BUCKET),
    ),
    BusRole.OPERATOR: (
        hears(subjects.HEARTBEATS, subjects.ONLINE_SERVED, subjects.LATENCY_SAMPLES),
        says(subjects.PING, subjects.SLO_STATUS, subjects.PROFILE, subjects.PREDICT),
        says(subjects.drain(ANY), subjects.role(ANY)),
        says("$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*"),
        writes(subjects.API_KEYS_BUCKET, subjects.REVOKED_API_KEYS_BUCKET, subjects.KEY_USAGE_BUCKET),
        writes(subjects.BUDGETS_BUCKET, subjects.SLO_PROFILES_BUCKET),  # slackwater profile --live
        reads(subjects.EXECUTORS_BUCKET, subjects.BATCHES_BUCKET, subjects.LATENCY_MODELS_BUCKET),
    ),
}
