"""Looking something up by a name that a person wrote."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def named(known: Mapping[str, T], name: str, what: str) -> T:
    """Raises ValueError that lists the known names; ``what`` says of what."""
    try:
        return known[name]
    except KeyError:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}") from None
