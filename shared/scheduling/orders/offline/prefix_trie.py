"""T_p of HyGen Alg. 3: offline requests in a prefix trie, whose depth-first order puts those that share prompts next
to each other.

Prompts are compared by blocks of tokens, since the KV cache shares nothing smaller; what is left over at a prompt's
end is a short block of its own. Runs of blocks that all requests below share are one edge. Each request is a leaf
(section 4.3), so one whose prompt begins another's, or equals it, is that one's sibling over an empty edge.

Edges hold no tokens: they are ranges of a packed prompt that passes through them, so the trie costs a few hundred
bytes per request beside the prompts themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from itertools import chain
from typing import TypeAlias

from shared.scheduling.orders.packed_prompt import TOKEN_BYTES
from shared.scheduling.request import Request


class _Branch:
    """What all requests below share. ``prompt[:end]`` is the path from the root, ``prompt[start:end]`` the edge."""

    __slots__ = ("children", "end", "num_waiting", "parent", "prompt", "start")

    def __init__(self, parent: _Branch | None, prompt: bytes, start: int, end: int, num_waiting: int) -> None:
        self.parent = parent
        self.prompt = prompt  # of any request below
        self.start = start
        self.end = end
        self.num_waiting = num_waiting  # waiting requests below
        self.children: OrderedDict[_Key, _Node] = OrderedDict()  # finds its first in O(1) after many deletions


class _Leaf:
    """One request; ``prompt[start:end]`` is what it shares with no other."""

    __slots__ = ("end", "num_waiting", "parent", "prompt", "request", "start")

    def __init__(self, parent: _Branch, prompt: bytes, start: int, request: Request) -> None:
        self.parent = parent
        self.prompt = prompt
        self.start = start
        self.end = len(prompt)
        self.num_waiting = 0
        self.request = request


_Node: TypeAlias = _Branch | _Leaf
_Key: TypeAlias = bytes | str  # an edge's first block; for an empty edge the request's id


class PrefixTrie:
    """Insert, remove and hold in time proportional to the number of edges on a request's path.

    The order is depth first, siblings in the order in which the first of each came. A request that is held (it runs
    somewhere) is left out of the order and keeps its place in it, however many come and go meanwhile.
    """

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self._block_bytes = block_size * TOKEN_BYTES
        self._root = _Branch(None, b"", 0, 0, 0)
        self._leaves: dict[str, _Leaf] = {}

    def __len__(self) -> int:
        """Held requests included."""
        return len(self._leaves)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leaves

    @property
    def num_waiting(self) -> int:
        return self._root.num_waiting

    def prompt(self, request_id: str) -> bytes:
        """Of a known request, packed. Raises KeyError for an unknown id."""
        return self._leaves[request_id].prompt

    def in_order(self, avoiding: Iterable[bytes] = ()) -> Iterator[Request]:
        """Waiting requests, depth first, read lazily; the trie must not change meanwhile. At each branch, what shares
        more of the prompts that are to be avoided comes after what shares less."""
        avoided = self._paths(avoiding)
        path = [_children(self._root, avoided)]
        while path:
            for node in path[-1]:
                if not node.num_waiting:
                    continue
                if isinstance(node, _Branch):
                    path.append(_children(node, avoided))
                    break
                yield node.request
            else:
                path.pop()

    def insert(self, request: Request, prompt: bytes) -> None:
        """A request that waits. ``prompt``: its packed tokens, kept by reference. Raises ValueError for an id that is
        here already."""
        request_id = request.request_id
        if request_id in self._leaves:
            raise ValueError(f"request {request_id} is here already")
        parent = self._parent_for(prompt)
        leaf = _Leaf(parent, prompt, parent.end, request)
        parent.children[self._key(leaf)] = leaf
        self._leaves[request_id] = leaf
        _count(leaf, 1)

    def hold(self, request_id: str) -> None:
        """A waiting request is left out of the order until ``resume``. Raises KeyError for an unknown id."""
        leaf = self._leaves[request_id]
        assert leaf.num_waiting == 1, f"request {request_id} is held already"
        _count(leaf, -1)

    def resume(self, request_id: str) -> None:
        """A held request waits again, at its old place. Raises KeyError for an unknown id."""
        leaf = self._leaves[request_id]
        assert leaf.num_waiting == 0, f"request {request_id} is not held"
        _count(leaf, 1)

    def remove(self, request_id: str) -> None:
        """Forget a request, waiting or held, and its prompt. Raises KeyError for an unknown id."""
        leaf = self._leaves.pop(request_id)
        if leaf.num_waiting:
            _count(leaf, -1)
        branch: _Branch | None = leaf.parent
        assert branch is not None
        del branch.children[self._key(leaf)]
        if branch.parent is not None and len(branch.children) == 1:
            branch = self._merge(branch)
        while branch is not None and branch.parent is not None:
            if branch.prompt is leaf.prompt:
                branch.prompt = next(iter(branch.children.values())).prompt
            branch = branch.parent

    def _paths(self, prompts: Iterable[bytes]) -> set[_Node]:
        """The root, and whatever else shares a block with one of the prompts; empty where there are none."""
        found: set[_Node] = set()  # membership only, never iterated
        for prompt in prompts:
            node: _Node | None = self._root
            while isinstance(node, _Branch):
                found.add(node)
                is_shared = node.prompt[node.start : node.end] == prompt[node.start : node.end]
                node = node.children.get(prompt[node.end : node.end + self._block_bytes]) if is_shared else None
            if node is not None:
                found.add(node)
        return found

    def _parent_for(self, prompt: bytes) -> _Branch:
        """The branch under which a new leaf hangs; an edge that the prompt leaves half-way is split there."""
        branch = self._root
        while True:
            start = branch.end
            child = branch.children.get(prompt[start : start + self._block_bytes])
            if child is None:
                return branch
            shared_end = self._shared_end(child, prompt)
            if isinstance(child, _Leaf) or shared_end < child.end:
                return self._split(child, shared_end)
            branch = child

    def _shared_end(self, node: _Node, prompt: bytes) -> int:
        """Where the path to the end of ``node``'s edge and ``prompt``, equal up to the edge's first block, part."""
        limit = min(node.end, len(prompt))
        whole_end = limit - limit % self._block_bytes
        is_comparable = limit == whole_end or node.end == len(prompt)  # a short block equals nothing but itself
        if is_comparable and node.prompt[node.start : limit] == prompt[node.start : limit]:
            return limit
        low, high = node.start, whole_end
        while low < high:
            middle = low + -(-(high - low) // (2 * self._block_bytes)) * self._block_bytes
            if node.prompt[low:middle] == prompt[low:middle]:
                low = middle
            else:
                high = middle - self._block_bytes
        return low

    def _split(self, node: _Node, end: int) -> _Branch:
        """A new branch in ``node``'s place, with ``node`` below it; it needs a second child."""
        parent = node.parent
        assert parent is not None
        branch = _Branch(parent, node.prompt, node.start, end, node.num_waiting)
        parent.children[self._key(node)] = branch
        node.parent, node.start = branch, end
        branch.children[self._key(node)] = node
        return branch

    def _merge(self, branch: _Branch) -> _Branch:
        """The only child takes the branch's place and edge; returns its new parent."""
        parent = branch.parent
        assert parent is not None
        (child,) = branch.children.values()
        parent.children[self._key(branch)] = child
        child.parent, child.start = parent, branch.start
        return parent

    def _key(self, node: _Node) -> _Key:
        block = node.prompt[node.start : min(node.end, node.start + self._block_bytes)]
        if block:
            return block
        assert isinstance(node, _Leaf)
        return node.request.request_id

    def check_integrity(self) -> None:
        """Raises AssertionError where paths, counts and leaves disagree."""
        assert self._check(self._root) == len(self._leaves)

    def _check(self, branch: _Branch) -> int:
        """The number of leaves below, which is at most a recursion per block of a prompt."""
        num_leaves = 0
        assert branch is self._root or len(branch.children) >= 2
        assert branch.num_waiting == sum(child.num_waiting for child in branch.children.values())
        for key, child in branch.children.items():
            assert key == self._key(child) and child.parent is branch and child.start == branch.end
            assert child.prompt[: branch.end] == branch.prompt[: branch.end]
            if isinstance(child, _Leaf):
                assert self._leaves[child.request.request_id] is child and child.end == len(child.prompt)
                num_leaves += 1
            else:
                assert child.end > child.start
                num_leaves += self._check(child)
        assert branch is self._root or any(child.prompt is branch.prompt for child in branch.children.values())
        return num_leaves


def _children(branch: _Branch, avoided: Container[_Node]) -> Iterator[_Node]:
    """Those that are to be avoided last, each part in its order."""
    children = branch.children.values()
    if branch not in avoided:
        return iter(children)
    return chain((c for c in children if c not in avoided), (c for c in children if c in avoided))


def _count(leaf: _Leaf, change: int) -> None:
    leaf.num_waiting += change
    branch: _Branch | None = leaf.parent
    while branch is not None:
        branch.num_waiting += change
        branch = branch.parent
