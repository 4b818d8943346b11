"""What one replica has done since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Counted since the start; see ExecutorCounters."""

    steps_offline: int = 0
    preemptions: int = 0
    pauses: int = 0
    checkpointed_slots: int = 0
    restored_slots: int = 0
    offline_dropped: int = 0
    aborted: int = 0
    finished_online: int = 0
    finished_offline: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    online_tokens: int = 0
    offline_tokens: int = 0
