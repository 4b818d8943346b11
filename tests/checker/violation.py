"""What the checker says, and what it lets pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """``invariant``: a short name; ``what``: how it was broken; ``seen``: what the client sent and saw."""

    invariant: str
    what: str
    seen: object


@dataclass(frozen=True, slots=True)
class Limits:
    """``stream_s``: the longest that any answer may take, whatever happens; ``idle_pause_s``: the longest pause of one
    where nothing else is to be done; ``idle_batch_s``: the longest that a batch of twenty lines may take then;
    ``key_settles_s``: until every gateway knows of a key once all is well; ``gone_s``: in which, from then on, what
    nobody needs has to go; ``beats_s``: in which each executor is heard twice; ``growth_bytes``, ``growth``: what a
    process may have more in the last third of its life than in the second, whichever is more, where it lived for at
    least ``flat_after_s``; ``late_s``: beyond its grace, in which one that was told to end has to be gone;
    ``window_s``: before which no batch expires, a day without what a wrong clock may take of it."""

    stream_s: float = 240.0
    idle_pause_s: float = 20.0
    idle_batch_s: float = 60.0
    key_settles_s: float = 10.0
    gone_s: float = 60.0
    beats_s: float = 2.5
    growth_bytes: int = 32 * 2**20
    growth: float = 0.1
    flat_after_s: float = 120.0
    late_s: float = 30.0
    window_s: float = 20 * 3600.0
