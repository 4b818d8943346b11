"""Which configurations are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream import errors
from tests.simulation.nats.jetstream.config import Config, filters
from tests.simulation.nats.jetstream.errors import ApiError
from tests.simulation.nats.subjects import overlap

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.consumer import Consumer
    from tests.simulation.nats.jetstream.jetstream import JetStream
    from tests.simulation.nats.jetstream.stream import Stream

NOT_UNDONE = {
    "deny_delete": "stream configuration update can not cancel deny message deletes",
    "deny_purge": "stream configuration update can not cancel deny purge",
    "allow_msg_ttl": "message TTL status can not be disabled",
    "sealed": "stream configuration update can not unseal a sealed stream",
}
NOT_HERE = (
    "mirror",
    "sources",
    "republish",
    "subject_transform",
    "subject_delete_marker_ttl",
    "allow_atomic",
    "allow_msg_counter",
    "allow_msg_schedules",
    "first_seq",
    "no_ack",
)
NOT_UPDATED = {"deliver_policy": "deliver policy", "ack_policy": "ack policy", "mem_storage": "storage type"}
NEEDS = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}
POLICY_NAMES = {
    "by_start_sequence": "by start sequence",
    "by_start_time": "by start time",
    "last_per_subject": "last per subject",
}


def check_subjects(config: Config, jetstream: JetStream, own: Stream | None = None) -> None:
    """Raises ApiError where another stream has them."""
    for other in jetstream.streams.values():
        if other is own:
            continue
        for subject in config["subjects"]:
            if any(overlap(subject, each) for each in other.config["subjects"]):
                raise errors.SUBJECTS_OVERLAP


def check_known(asked: Config) -> None:
    """Raises ApiError where it asks for what the server in memory does not do."""
    for option in NOT_HERE:
        if asked.get(option):
            raise ApiError(400, 10052, f"{option} is not there in memory")


def check_stream(config: Config) -> None:
    """Raises ApiError where it makes no sense."""
    if config["allow_rollup_hdrs"] and config["deny_purge"]:
        raise ApiError(500, 10052, "roll-ups require the purge permission")
    if config.get("discard_new_per_subject") and (config["discard"] != "new" or config["max_msgs_per_subject"] <= 0):
        what = "discard new policy to be set" if config["discard"] != "new" else "max msgs per subject > 0"
        raise ApiError(500, 10052, f"discard new per subject requires {what}")


def check_stream_update(stream: Stream, config: Config, jetstream: JetStream) -> None:
    """Raises ApiError."""
    check_subjects(config, jetstream, stream)
    if config["storage"] != stream.config["storage"]:
        raise ApiError(500, 10052, "stream configuration update can not change storage type")
    retentions = config["retention"], stream.config["retention"]
    if retentions[0] != retentions[1] and "workqueue" in retentions:
        raise ApiError(500, 10052, "stream configuration update can not change retention policy to/from workqueue")
    for flag, why in NOT_UNDONE.items():
        if stream.config[flag] and not config[flag]:
            raise ApiError(500, 10052, why)


def check_consumer(config: Config, stream: Stream, existing: Consumer | None) -> None:
    """Raises ApiError."""
    policy = config["deliver_policy"]
    if existing is None and stream.config["retention"] == "workqueue":
        _check_acknowledging(config)
    for option, what in (("opt_start_seq", "start sequence"), ("opt_start_time", "start time")):
        if NEEDS.get(policy) == option and not config.get(option):
            raise _policy_error(policy, f"optional {what} is not set")
        if NEEDS.get(policy) != option and config.get(option):
            raise _policy_error(policy, f"optional {what} is also set")
    if policy == "last_per_subject" and not filters(config):
        raise _policy_error(policy, "optional filter subject is not set")
    if existing is not None:
        for option, what in NOT_UPDATED.items():
            if existing.config.get(option) != config.get(option):
                raise ApiError(500, 10012, f"{what} can not be updated")
        return
    if stream.config["retention"] == "workqueue":
        _check_work_queue(config, stream)


def _check_acknowledging(config: Config) -> None:
    if config["ack_policy"] == "none":
        raise ApiError(400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream")


def _check_work_queue(config: Config, stream: Stream) -> None:
    if config["ack_policy"] == "all":
        raise ApiError(400, 10098, "workqueue stream requires explicit ack")
    if config["deliver_policy"] != "all":
        raise ApiError(400, 10101, "consumer must be deliver all on workqueue stream")
    for other in stream.consumers.values():
        if not filters(config) or not other.filters:
            raise ApiError(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
        if any(overlap(one, each) for one in filters(config) for each in other.filters):
            raise ApiError(400, 10100, "filtered consumer not unique on workqueue stream")


def _policy_error(policy: str, why: str) -> ApiError:
    name = POLICY_NAMES.get(policy, policy)
    return ApiError(400, 10094, f"consumer delivery policy is deliver {name}, but {why}")
