"""Subjects: which of them a pattern matches, and who listens to one."""

from collections import Counter
from typing import Any, Generic, Protocol, TypeVar

CACHED = 4096  # subjects whose listeners are remembered


def matches(pattern: str, subject: str) -> bool:
    """``*`` stands for one token, a last ``>`` for one or more. A wildcard in ``subject`` is a token like others."""
    if pattern == subject:
        return True
    if "*" not in pattern and not pattern.endswith(">"):
        return False
    wanted, found = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(found) <= len(wanted):
            return False
    elif len(found) != len(wanted):
        return False
    return all(token in ("*", other) for token, other in zip(wanted, found, strict=False))


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for index, token in enumerate(left):
        if index == len(right):
            return False
        if token == ">" or right[index] == ">":
            return True
        if "*" not in (token, right[index]) and token != right[index]:
            return False
    return len(left) == len(right)


def is_literal(subject: str) -> bool:
    return "*" not in subject and ">" not in subject


def is_valid(pattern: str) -> bool:
    """As nats-server takes it of a subscriber: no empty token, ``>`` last."""
    tokens = pattern.split(".")
    return all(tokens) and ">" not in tokens[:-1]


class Listens(Protocol):
    subject: str
    queue: str


L = TypeVar("L", bound=Listens)


class Listeners(Generic[L]):
    """Who listens to a subject: those alone, and those of each queue group; in the order in which they came."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[int, L]] = {}
        self._wild: dict[str, dict[int, L]] = {}  # by the tokens before the first wildcard
        self._depths: Counter[int] = Counter()  # of those
        self._firsts: Counter[str] = Counter()  # tokens of all
        self._cache: dict[str, tuple[list[L], dict[str, list[L]]]] = {}

    def add(self, listener: L) -> None:
        self._firsts[_first(listener.subject)] += 1
        if is_literal(listener.subject):
            self._exact.setdefault(listener.subject, {})[id(listener)] = listener
            self._cache.pop(listener.subject, None)
            return
        prefix, depth = _prefix(listener.subject)
        self._wild.setdefault(prefix, {})[id(listener)] = listener
        self._depths[depth] += 1
        self._cache.clear()

    def remove(self, listener: L) -> None:
        first = _first(listener.subject)
        self._firsts[first] -= 1
        if not self._firsts[first]:
            del self._firsts[first]
        if is_literal(listener.subject):
            self._cache.pop(listener.subject, None)
            _discard(self._exact, listener.subject, listener)
            return
        prefix, depth = _prefix(listener.subject)
        _discard(self._wild, prefix, listener)
        self._depths[depth] -= 1
        if not self._depths[depth]:
            del self._depths[depth]
        self._cache.clear()

    def of(self, subject: str) -> tuple[list[L], dict[str, list[L]]]:
        """(those alone, those of each queue group)"""
        found = self._cache.get(subject)
        if found is None:
            if _first(subject) not in self._firsts and "*" not in self._firsts and ">" not in self._firsts:
                return _NOBODY
            if len(self._cache) >= CACHED:
                self._cache.clear()
            found = self._cache[subject] = self._find(subject)
        return found

    def __contains__(self, subject: str) -> bool:
        alone, groups = self.of(subject)
        return bool(alone or groups)

    def _find(self, subject: str) -> tuple[list[L], dict[str, list[L]]]:
        alone: list[L] = []
        groups: dict[str, list[L]] = {}
        exact = self._exact.get(subject)
        found = [] if exact is None else list(exact.values())
        num_tokens = subject.count(".") + 1
        end, wild = -1, self._wild  # end: of the tokens before
        for depth in range(num_tokens):
            if depth in self._depths and (candidates := wild.get(subject[:end] if depth else "")):
                is_last = depth == num_tokens - 1
                for each in candidates.values():
                    pattern = each.subject
                    if pattern[-1] == "*" and len(pattern) == end + 2:  # one token and no more
                        if is_last:
                            found.append(each)
                    elif matches(pattern, subject):
                        found.append(each)
            end = subject.find(".", end + 1)
        for listener in found:
            (groups.setdefault(listener.queue, []) if listener.queue else alone).append(listener)
        return alone, groups


_NOBODY: tuple[list[Any], dict[str, list[Any]]] = ([], {})


def _first(subject: str) -> str:
    return subject.partition(".")[0]


def _prefix(pattern: str) -> tuple[str, int]:
    tokens = pattern.split(".")
    depth = next(index for index, token in enumerate(tokens) if token in ("*", ">"))
    return ".".join(tokens[:depth]), depth


def _discard(table: dict[str, dict[int, L]], key: str, listener: L) -> None:
    if key in table:
        table[key].pop(id(listener), None)
        if not table[key]:
            del table[key]
