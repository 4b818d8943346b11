"""The offline orders said in the simplest way: a list by arrival, and a trie of one block per edge, walked anew."""

import itertools
from collections.abc import Iterator, Sequence
from operator import eq
from typing import Any

from shared.scheduling.request import Kind, Request


def make_waiting(request_id: str, num_tokens: int) -> Request:
    return Request(request_id, Kind.OFFLINE, num_tokens, num_tokens + 10)


class NaiveOrder:
    """Everything known, held or not, with what is held."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prompts: dict[str, list[int]] = {}  # by arrival
        self.held: dict[str, None] = {}
        self.trie: dict[Any, Any] = {}  # blocks to tries; request ids to None

    def add(self, request_id: str, prompt: list[int]) -> None:
        self.prompts[request_id] = prompt
        node = self.trie
        for block in self._blocks(prompt):
            node = node.setdefault(block, {})
        node[request_id] = None

    def remove(self, request_id: str) -> None:
        self._remove(self.trie, [*self._blocks(self.prompts.pop(request_id)), request_id])
        self.held.pop(request_id, None)

    def waiting(self) -> list[str]:
        """By arrival."""
        return [request_id for request_id in self.prompts if request_id not in self.held]

    def depth_first(self, avoiding: Sequence[list[int]] = ()) -> list[str]:
        """At each node, children on the way to a prompt that is to be avoided come last."""
        avoided = [self._blocks(prompt) for prompt in avoiding]
        return [request_id for request_id in self._walk(self.trie, [], avoided) if request_id not in self.held]

    def fair(self, utility_ratio: float, draws: list[float]) -> list[str]:
        """HyGen Alg. 4, lines 22-34, over ``draws`` for as long as they last."""
        by_prefix, by_age, chosen = self.depth_first(), self.waiting(), []
        for number in draws:
            if not by_age:
                break
            chosen.append((by_prefix if number < utility_ratio else by_age)[0])
            by_prefix.remove(chosen[-1])
            by_age.remove(chosen[-1])
        return chosen

    def _blocks(self, prompt: list[int]) -> list[tuple[int, ...]]:
        return [tuple(prompt[n : n + self.block_size]) for n in range(0, len(prompt), self.block_size)]

    def _walk(self, node: dict[Any, Any], path: list[Any], avoided: list[list[Any]]) -> Iterator[str]:
        keys = sorted(node, key=lambda key: any(blocks[: len(path) + 1] == [*path, key] for blocks in avoided))
        for key in keys:
            if node[key] is None:
                yield key
            else:
                yield from self._walk(node[key], [*path, key], avoided)

    def _remove(self, node: dict[Any, Any], path: list[Any]) -> None:
        first, *rest = path
        if rest:
            self._remove(node[first], rest)
        if not node[first]:
            del node[first]


def numbered(prefix: str) -> Iterator[str]:
    return (f"{prefix}-{number}" for number in itertools.count())


def num_common_blocks(one: list[int], other: list[int], block_size: int) -> int:
    """A short one at the end equals nothing but itself."""
    blocks = ([each[n : n + block_size] for n in range(0, len(each), block_size)] for each in (one, other))
    return sum(1 for _ in itertools.takewhile(bool, map(eq, *blocks)))
