"""Where a consumer begins to read its stream."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream.config import NS, Config, filters

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.stream import Stream


def beginning(stream: Stream, config: Config) -> tuple[int, list[int]]:
    """(the first sequence that it may deliver; those that it delivers before all that come, of the newest of each
    subject)"""
    store, policy = stream.store, config["deliver_policy"]
    wanted = filters(config) or [">"]
    if policy == "new":
        return store.last + 1, []
    if policy == "last":
        return max((store.last_of(each) for each in wanted), default=0) or store.first, []
    if policy == "by_start_sequence":
        return max(config["opt_start_seq"], store.first), []
    if policy == "by_start_time":
        since_ns = _parse_time(config["opt_start_time"])
        later = (sequence for sequence, each in store.messages.items() if each.stored_ns >= since_ns)
        return next(later, store.last + 1), []
    if policy == "last_per_subject" and stream.config["max_msgs_per_subject"] != 1:
        subjects = dict.fromkeys(subject for each in wanted for subject in store.matching(each))
        newest = sorted(next(reversed(store.subjects[subject])) for subject in subjects)
        return (newest[0] if newest else max(store.first, store.last)), newest
    return store.first, []


def _parse_time(text: str) -> int:
    """Unix time in nanoseconds."""
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * NS)
