"""Which executors serve what, by their heartbeats."""

from collections.abc import Iterable

from shared.protocol.executors import Heartbeat
from shared.scheduling.placement.role import Role, acting_role


def acting_roles(beats: Iterable[Heartbeat]) -> dict[str, Role]:
    """As what each acts beside those of the same model that take requests, by id."""
    there = list(beats)
    by_model: dict[str, list[Role]] = {}
    for beat in there:
        if not beat.draining:
            by_model.setdefault(beat.info.spec.model, []).append(beat.info.pool)
    return {
        beat.info.executor_id: acting_role(beat.info.pool, by_model.get(beat.info.spec.model, ())) for beat in there
    }


def role_text(beat: Heartbeat, acts_as: Role) -> str:
    """As people read it; empty where there are no pools for it."""
    role = beat.info.role
    if role is acts_as:
        return "" if role is Role.MIXED else role.value
    return f"{role}, acts as {acts_as}"
