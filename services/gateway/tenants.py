"""Who sees what: files, batches and stored responses are those of the key that made them, or of its organization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shared.protocol.access.api_keys import ApiKeyRecord


class Owned(Protocol):
    """What is kept for somebody. ``owner``: see ``owner_of``; empty for what only admins see."""

    @property
    def owner(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody who asks. What it makes has its ``owner``, empty without a key."""

    owner: str
    is_admin: bool

    @classmethod
    def of(cls, key: ApiKeyRecord | None) -> Tenant:
        """Who needs no key may see everything."""
        return cls("", True) if key is None else cls(key.owner, key.permits("admin"))

    def sees(self, thing: Owned) -> bool:
        """Whether it is there for who asks: what is not is as good as absent."""
        return self.is_admin or self.owner == thing.owner != ""
