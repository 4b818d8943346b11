"""Configurations of streams and consumers, as JSON has them, with nats-server's defaults."""

from __future__ import annotations

from typing import Any

NS = 1_000_000_000
TWO_MINUTES_NS = 120 * NS
ACK_WAIT_NS = 30 * NS
EPHEMERAL_INACTIVE_NS = 5 * NS

Config = dict[str, Any]

_UNLIMITED = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_FLAGS = ("allow_direct", "mirror_direct", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_msg_ttl")


def stream_config(asked: Config) -> Config:
    """What is not told, as nats-server takes it."""
    config: Config = {
        "name": asked["name"],
        "subjects": list(asked.get("subjects") or [asked["name"]]),
        "retention": asked.get("retention") or "limits",
        "discard": asked.get("discard") or "old",
        "storage": asked.get("storage") or "file",
        "num_replicas": asked.get("num_replicas") or 1,
        "compression": asked.get("compression") or "none",
        "max_age": asked.get("max_age") or 0,
        "consumer_limits": {},
    }
    if asked.get("description"):
        config["description"] = asked["description"]
    for limit in _UNLIMITED:
        config[limit] = asked.get(limit) or -1
    for flag in _FLAGS:
        config[flag] = bool(asked.get(flag))
    if asked.get("discard_new_per_subject"):
        config["discard_new_per_subject"] = True
    window_ns = asked.get("duplicate_window") or TWO_MINUTES_NS
    config["duplicate_window"] = min(window_ns, config["max_age"]) if config["max_age"] else window_ns
    return config


def consumer_config(asked: Config) -> Config:
    """As ``stream_config``, of what a consumer may be told."""
    config: Config = {"ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant", "num_replicas": 0}
    config |= {name: value for name, value in asked.items() if value not in (None, "", [], False)}
    config["max_deliver"] = asked.get("max_deliver") or -1
    is_push = bool(config.get("deliver_subject"))
    if config["ack_policy"] != "none":
        config.setdefault("ack_wait", ACK_WAIT_NS)
        config.setdefault("max_ack_pending", 1000)
        if config.get("backoff"):
            config["ack_wait"] = config["backoff"][0]
    else:
        config.pop("ack_wait", None)
        config.pop("max_ack_pending", None)
    if not is_push:
        config.setdefault("max_waiting", 512)
    if not config.get("durable_name"):
        config.setdefault("inactive_threshold", EPHEMERAL_INACTIVE_NS)
    return config


def filters(config: Config) -> list[str]:
    """The subjects that a consumer is for; none: all."""
    if config.get("filter_subject"):
        return [config["filter_subject"]]
    return list(config.get("filter_subjects") or [])
