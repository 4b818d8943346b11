"""What an executor is for: pools of executors by how long their steps may be (OOCO section 3.2, Table 1)."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Role(enum.StrEnum):
    """Prompts of both kinds are for relaxed executors, whose steps may be long; what online requests generate is for
    strict ones, whose steps are held to the time between tokens; what offline requests generate is for either. A mixed
    one does all of it."""

    MIXED = "mixed"
    STRICT = "strict"
    RELAXED = "relaxed"

    @property
    def is_for_prompts(self) -> bool:
        """Requests begin here."""
        return self is not Role.STRICT


def acting_role(role: Role, there: Iterable[Role]) -> Role:
    """As what an executor of this role acts beside those that are ``there`` and can take requests, whether it is among
    them or not: as mixed where the other pool is empty."""
    if role is Role.MIXED:
        return role
    if role is Role.STRICT:
        return role if any(other.is_for_prompts for other in there) else Role.MIXED
    return role if any(other is Role.STRICT for other in there) else Role.MIXED
