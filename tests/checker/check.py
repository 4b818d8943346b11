"""What a history breaks of what is promised: ``violations``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.checker.batches import check_batches
from tests.checker.files import check_answers, check_files, check_keys
from tests.checker.history import History
from tests.checker.processes import check_endings, check_errors, check_left_over, check_memory, check_restarts
from tests.checker.streams import check_streams
from tests.checker.violation import Limits, Violation

INVARIANTS: tuple[Callable[[History, Limits], Iterator[Violation]], ...] = (
    check_streams,
    check_batches,
    check_files,
    check_keys,
    check_answers,
    check_restarts,
    check_endings,
    check_errors,
    check_memory,
    check_left_over,
)


def violations(history: History, limits: Limits | None = None) -> list[Violation]:
    """All of them, in the order of the invariants and of the history."""
    limits = limits or Limits()
    return [violation for invariant in INVARIANTS for violation in invariant(history, limits)]
