"""How urgent a request is to its client: OpenAI's service tiers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

DEFAULT = "default"
FLEX = "flex"  # a single offline request
ASKED = ("auto", DEFAULT, FLEX, "priority")
AskedTier = Annotated[str, Meta(extra_json_schema={"enum": list(ASKED)})]


def served_tier(asked: str | None) -> str:
    """The tier that a request gets: online requests have one, whatever it is called."""
    return FLEX if asked == FLEX else DEFAULT
