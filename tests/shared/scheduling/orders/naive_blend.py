"""BlendServe's order said in the simplest way: the prefix tree is built anew from all prompts, loads are summed over
all requests, and both scanners look at all that is left. From the tree itself are taken only the numbers by which ties
are broken, which branches are open, and the estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shared.scheduling.orders.offline.density.node import DensityBranch, Load, number_of
from shared.scheduling.orders.offline.density.tree import DensityTree
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Request


@dataclass(eq=False)
class Known:
    """One request of the order. ``is_waiting``: and in the order."""

    request: Request
    prompt: list[int]
    group: str
    is_waiting: bool = True

    @property
    def most(self) -> int:
        return self.request.max_total_tokens - self.request.num_tokens


@dataclass(eq=False)
class Node:
    """A request, some alike, or a branch, by what it has."""

    num_prefix_tokens: int
    known: Known | None = None
    alike: list[Node] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    num_edge_tokens: int = 0
    number: int = 0
    estimate: int = 0
    is_open: bool = False

    @property
    def requests(self) -> list[Node]:
        """That wait."""
        if self.known is not None:
            return [self]
        return [each for child in self.alike or self.children for each in child.requests]

    @property
    def load(self) -> Load:
        if self.known is not None:
            return self.request_load(self.num_output_tokens)
        if self.alike:
            p = sum(each.request_of.num_tokens for each in self.alike)
            own = sum(each.num_own_tokens for each in self.alike)
            n, most = len(self.alike), sum(each.known_of.most for each in self.alike)
            d = min(self.estimate, most // n)
            return Load(own + n * d, 2 * d * p + n * d * d)
        loads = [child.load for child in self.children]
        tokens = sum(load.tokens for load in loads) + (self.num_edge_tokens if loads else 0)
        return Load(tokens, sum(load.double_reads for load in loads))

    @property
    def known_of(self) -> Known:
        assert self.known is not None
        return self.known

    @property
    def request_of(self) -> Request:
        return self.known_of.request

    @property
    def num_own_tokens(self) -> int:
        return max(0, self.request_of.num_tokens - self.num_prefix_tokens)

    @property
    def num_output_tokens(self) -> int:
        most = self.known_of.most
        return most if self.request_of.ends_at_limit else min(self.estimate, most)

    @property
    def mean_kv_tokens(self) -> float:
        return self.request_of.num_tokens + self.num_output_tokens / 2

    def request_load(self, d: int) -> Load:
        p = self.request_of.num_tokens
        return Load(self.num_own_tokens + d, 2 * p * d + d * d)

    @property
    def place(self) -> tuple[int, int]:
        return self.load.level, self.number


class NaiveBlend:
    def __init__(self, block_size: int, tree: DensityTree) -> None:
        self.block_size = block_size
        self.tree = tree
        self.known: dict[str, Known] = {}

    def root(self) -> Node:
        """Of what waits now."""
        node = self._branch(list(self.known.values()), 0, 0)
        node.is_open = True
        return node

    def in_order(self, groups: Sequence[str], in_use: Sequence[float] = (0.0, 0.0)) -> list[str]:
        """For nobody in particular; ``in_use``: KV tokens of what runs, on the left and on the right."""
        root = self.root()
        paths = [path for path in self._paths(root) if path[-1].known_of.group in groups]
        used, shown = list(in_use), []
        while paths:
            index = 0 if self._takes_left(root, paths[0], paths[-1], used) else -1
            path = paths.pop(index)
            shown.append(path[-1].request_of.request_id)
            used[not self.is_left(root, path)] += path[-1].mean_kv_tokens
        return shown

    def is_left(self, root: Node, path: Sequence[Node]) -> bool:
        for node in path:
            if node.load.level != root.load.level:
                return node.load.level < root.load.level
        return path[-1].load.density >= root.load.density

    def path_of(self, root: Node, request_id: str) -> list[Node]:
        """Of one that waits."""
        return next(path for path in self._paths(root) if path[-1].request_of.request_id == request_id)

    def _takes_left(self, root: Node, left: Sequence[Node], right: Sequence[Node], used: Sequence[float]) -> bool:
        pair = next(((a, b) for a, b in zip(left, right, strict=False) if a is not b), None)
        if pair is None:
            return True
        rho, rho_left, rho_right = root.load.density, pair[0].load.density, pair[1].load.density
        if rho_left <= rho_right or rho <= rho_right or rho >= rho_left:
            return rho_left <= rho_right or rho >= rho_left
        part = (rho - rho_right) / (rho_left - rho_right)
        return used[0] * (1.0 - part) <= used[1] * part

    def _paths(self, root: Node) -> list[list[Node]]:
        units: list[Node] = []
        self._units(root, units)
        return [path for unit in sorted(units, key=lambda each: each.place) for path in self._below(unit)]

    def _units(self, node: Node, units: list[Node]) -> None:
        for child in node.children:
            if child.is_open:
                self._units(child, units)
            elif child.requests:
                units.append(child)

    def _below(self, node: Node) -> Iterator[list[Node]]:
        if node.known is not None:
            yield [node]
        by_number = sorted(node.alike, key=lambda each: each.number)
        for child in by_number or sorted((each for each in node.children if each.requests), key=lambda e: e.place):
            for path in self._below(child):
                yield [node, *path]

    def _branch(self, known: list[Known], start: int, end: int) -> Node:
        """All of these share the first ``end`` tokens."""
        prompt = known[0].prompt[:end] if known else []
        of_tree = next((each for each in self._of_tree(prompt)), self.tree.root)
        node = Node(
            end,
            prompt=prompt,
            num_edge_tokens=end - start,
            number=number_of(of_tree.rank),
            estimate=of_tree.estimate,
            is_open=of_tree.is_open,
        )
        by_block: dict[tuple[int, ...], list[Known]] = {}
        leaves: list[Known] = []
        for each in known:
            block = tuple(each.prompt[end : end + self.block_size])
            if block:
                by_block.setdefault(block, []).append(each)
            else:
                leaves.append(each)
        leaves += [each for same in by_block.values() if len(same) == 1 for each in same]
        node.children = [self._leaf(each, node) for each in leaves if each.is_waiting and each.request.ends_at_limit]
        bundles: dict[int, list[Node]] = {}
        for each in leaves:
            if each.is_waiting and not each.request.ends_at_limit:
                bundles.setdefault(each.most.bit_length(), []).append(self._leaf(each, node))
        for bits, alike in bundles.items():
            number = number_of(of_tree.bundles[bits].rank)
            node.children.append(Node(end, alike=alike, number=number, estimate=node.estimate))
        for same in by_block.values():
            if len(same) > 1:
                below = self._branch(same, end, self._shared_end(same, end))
                if below.children:
                    node.children.append(below)
        return node

    def _leaf(self, known: Known, parent: Node) -> Node:
        number = number_of(self.tree.leaf(known.request.request_id).rank)
        return Node(parent.num_prefix_tokens, known, number=number, estimate=parent.estimate)

    def _shared_end(self, known: Sequence[Known], end: int) -> int:
        while True:
            blocks = {tuple(each.prompt[end : end + self.block_size]) for each in known}
            if len(blocks) > 1 or blocks == {()}:
                return end
            end += len(blocks.pop())

    def _of_tree(self, prompt: list[int]) -> list[DensityBranch]:
        packed = pack_tokens(prompt)
        return [node for node in self.tree.path(packed) if node.prompt[: node.end] == packed]
