"""Packed prompts in a radix tree, compared by blocks of tokens, since the KV cache shares nothing smaller; what is left
over at a prompt's end is a short block of its own.

Runs of blocks that all requests below share are one edge. Each request is a leaf, so one whose prompt begins another's,
or equals it, is that one's sibling over an empty edge. Edges hold no tokens: they are ranges of a packed prompt that
passes through them, so the tree costs a few hundred bytes per request beside the prompts themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

from shared.scheduling.orders.offline.prefix_node import Branch, Leaf, Node
from shared.scheduling.packed_prompt import TOKEN_BYTES

_Key: TypeAlias = bytes | str  # an edge's first block; for an empty edge the request's id
AnyLeaf = TypeVar("AnyLeaf", bound=Leaf)


class PrefixTree(ABC, Generic[AnyLeaf]):
    """Insert and remove in time proportional to the number of edges on a request's path. Which order the children of a
    branch have is the subclass's, which hears of each change to the branches."""

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self._block_bytes = block_size * TOKEN_BYTES
        self._root = self._new_branch(None, b"", 0, 0)
        self._leaves: dict[str, AnyLeaf] = {}

    @abstractmethod
    def _new_branch(self, parent: Branch | None, prompt: bytes, start: int, end: int) -> Branch:
        """Without children."""

    @abstractmethod
    def _before(self, node: Node) -> None:
        """A branch is put above the node, or taken away above it: its place will change."""

    @abstractmethod
    def _is_split(self, branch: Branch, node: Node) -> None:
        """The new branch has taken the node's place, and has only it below."""

    @abstractmethod
    def _is_merged(self, branch: Branch, node: Node) -> None:
        """The node, the only one below the branch, has taken its place."""

    def _require_new(self, request_id: str) -> None:
        """Raises ValueError for an id that is here already."""
        if request_id in self._leaves:
            raise ValueError(f"request {request_id} is here already")

    def _hang(self, leaf: AnyLeaf) -> None:
        """A new leaf, whose parent is ``_parent_for`` its prompt."""
        assert leaf.parent is not None
        leaf.parent.children[self._key(leaf)] = leaf
        self._leaves[leaf.request.request_id] = leaf

    def _cut(self, leaf: AnyLeaf) -> None:
        """Forget a leaf, and the branch over it where one other node is left."""
        del self._leaves[leaf.request.request_id]
        branch: Branch | None = leaf.parent
        assert branch is not None
        del branch.children[self._key(leaf)]
        if branch.parent is not None and len(branch.children) == 1:
            branch = self._merge(branch)
        while branch is not None and branch.parent is not None:
            if branch.prompt is leaf.prompt:
                branch.prompt = next(reversed(branch.children.values())).prompt  # the oldest go first
            branch = branch.parent

    def _paths(self, prompts: Iterable[bytes]) -> set[Node]:
        """The root, and whatever else shares a block with one of the prompts; empty where there are none."""
        found: set[Node] = set()  # membership only, never iterated
        for prompt in prompts:
            found.update(self._path(prompt))
        return found

    def _path(self, prompt: bytes) -> Iterator[Node]:
        """From the root down."""
        node: Node | None = self._root
        while isinstance(node, Branch):
            yield node
            is_shared = node.prompt[node.start : node.end] == prompt[node.start : node.end]
            node = node.children.get(prompt[node.end : node.end + self._block_bytes]) if is_shared else None
        if node is not None:
            yield node

    def _parent_for(self, prompt: bytes) -> Branch:
        """The branch under which a new leaf hangs; an edge that the prompt leaves half-way is split there."""
        branch = self._root
        while True:
            start = branch.end
            child = branch.children.get(prompt[start : start + self._block_bytes])
            if child is None:
                return branch
            shared_end = self._shared_end(child, prompt)
            if isinstance(child, Leaf) or shared_end < child.end:
                return self._split(child, shared_end)
            branch = child

    def _shared_end(self, node: Node, prompt: bytes) -> int:
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

    def _split(self, node: Node, end: int) -> Branch:
        """A new branch in ``node``'s place, with ``node`` below it; it needs a second child."""
        parent = node.parent
        assert parent is not None
        self._before(node)
        branch = self._new_branch(parent, node.prompt, node.start, end)
        parent.children[self._key(node)] = branch
        node.parent, node.start = branch, end
        branch.children[self._key(node)] = node
        self._is_split(branch, node)
        return branch

    def _merge(self, branch: Branch) -> Branch:
        """The only child takes the branch's place and edge; returns its new parent."""
        parent = branch.parent
        assert parent is not None
        (child,) = branch.children.values()
        self._before(child)
        parent.children[self._key(branch)] = child
        child.parent, child.start = parent, branch.start
        self._is_merged(branch, child)
        return parent

    def _key(self, node: Node) -> _Key:
        block = node.prompt[node.start : min(node.end, node.start + self._block_bytes)]
        if block:
            return block
        assert isinstance(node, Leaf)
        return node.request.request_id

    def check_integrity(self) -> None:
        """Raises AssertionError where paths and leaves disagree."""
        assert self._check_paths(self._root) == len(self._leaves)

    def _check_paths(self, branch: Branch) -> int:
        """The number of leaves below, which is at most a recursion per block of a prompt."""
        num_leaves = 0
        assert branch is self._root or len(branch.children) >= 2
        for key, child in branch.children.items():
            assert child.parent is branch and child.start == branch.end and self._key(child) == key
            assert child.prompt[: child.start] == branch.prompt[: branch.end]
            if isinstance(child, Leaf):
                assert self._leaves[child.request.request_id] is child and child.end == len(child.prompt)
                num_leaves += 1
            else:
                assert child.end > child.start
                num_leaves += self._check_paths(child)
        assert branch is self._root or any(child.prompt is branch.prompt for child in branch.children.values())
        return num_leaves
