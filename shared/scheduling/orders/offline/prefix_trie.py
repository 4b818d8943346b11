"""T_p of HyGen Alg. 3: offline requests in a prefix trie, whose depth-first order puts those that share prompts next
to each other.

Prompts are compared by blocks of tokens, since the KV cache shares nothing smaller; what is left over at a prompt's
end is a short block of its own. Runs of blocks that all requests below share are one edge. Each request is a leaf
(section 4.3), so one whose prompt begins another's, or equals it, is that one's sibling over an empty edge.

Edges hold no tokens: they are ranges of a packed prompt that passes through them, so the trie costs a few hundred
bytes per request beside the prompts themselves. Requests are of groups, and each branch knows what is below it of each,
so that the order of some groups is read without a look at the others.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.prefix_node import Branch, Leaf, Node
from shared.scheduling.orders.offline.prefix_walk import Walk, below, outward, waits_below
from shared.scheduling.packed_prompt import TOKEN_BYTES
from shared.scheduling.request import Request

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
        self._root = Branch(None, b"", 0, 0, 0)
        self._leaves: dict[str, Leaf] = {}
        self.num_waiting = 0

    def depth_first(self, avoiding: Iterable[bytes] = (), turn: Turn | None = None) -> Iterator[Request]:
        """Waiting requests of those whose turn it is, of all where None is given, depth first, read lazily; the trie
        must not change meanwhile. At each branch, what shares more of the prompts that are to be avoided comes after
        what shares less."""
        return below(self._root, self._walk(turn, avoiding))

    def below(self, node: Node, turn: Turn | None = None) -> Iterator[Request]:
        """The part of ``depth_first`` that is at one of its nodes."""
        return below(node, self._walk(turn))

    def outward(self, node: Node | None, avoiding: Iterable[bytes] = (), turn: Turn | None = None) -> Iterator[Request]:
        """As ``depth_first``, beginning at one of its nodes, None for the root: what is below it, then its neighbours,
        those first that share more with it."""
        return outward(node or self._root, self._walk(turn, avoiding))

    def deepest_waiting(self, prompt: bytes, turn: Turn | None = None) -> Node | None:
        """Those that share most with a prompt, of all that wait and whose turn it is; None where nobody shares a block
        with it."""
        groups = self._walk(turn).groups
        deepest: Node | None = None
        node: Node | None = self._root
        while node is not None and waits_below(node, groups):
            deepest = node
            if isinstance(node, Leaf) or node.prompt[node.start : node.end] != prompt[node.start : node.end]:
                break
            node = node.children.get(prompt[node.end : node.end + self._block_bytes])
        return None if deepest is self._root else deepest

    def shared_path(self, request_id: str) -> bytes:
        """What a request's prompt shares with others. Raises KeyError for an unknown id."""
        leaf = self._leaves[request_id]
        return leaf.prompt[: leaf.start]

    def along(self, prompt: bytes) -> Iterator[tuple[int, int]]:
        """How many waiting requests begin with how much of a packed prompt: (end, requests) from the root on, for each
        edge of its path up to where all leave it, in whole blocks of the shared part."""
        node: Node | None = self._root
        while node is not None:
            end = self._shared_end(node, prompt) if node.end > node.start else node.end
            if end > node.start:
                yield end, node.num_waiting_of_all()
            is_passed = isinstance(node, Branch) and end == node.end
            block = prompt[end : end + self._block_bytes]
            node = node.children.get(block) if is_passed and block and isinstance(node, Branch) else None

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        """A request that waits. ``prompt``: its packed tokens, kept by reference. Raises ValueError for an id that is
        here already."""
        request_id = request.request_id
        if request_id in self._leaves:
            raise ValueError(f"request {request_id} is here already")
        parent = self._parent_for(prompt)
        leaf = Leaf(parent, prompt, parent.end, len(prompt), parent.next_rank(), request, group)
        parent.children[self._key(leaf)] = leaf
        self._leaves[request_id] = leaf
        self.num_waiting += 1
        self._enter_parts(leaf)

    def hold(self, request_id: str) -> bytes:
        """A waiting request is left out of the order until ``give_back``; its prompt. Raises KeyError for an unknown
        id."""
        leaf = self._leaves[request_id]
        assert leaf.is_waiting, f"request {request_id} is held already"
        self._count(leaf, -1)
        return leaf.prompt

    def give_back(self, request_id: str) -> None:
        """A held request waits again, at its old place. Raises KeyError for an unknown id."""
        leaf = self._leaves[request_id]
        assert not leaf.is_waiting, f"request {request_id} is not held"
        self._count(leaf, 1)

    def remove(self, request_id: str) -> None:
        """Forget a request, waiting or held, and its prompt. Raises KeyError for an unknown id."""
        leaf = self._leaves.pop(request_id)
        if leaf.is_waiting:
            self._count(leaf, -1)
        self._leave_parts(leaf)
        branch: Branch | None = leaf.parent
        assert branch is not None
        del branch.children[self._key(leaf)]
        if branch.parent is not None and len(branch.children) == 1:
            branch = self._merge(branch)
        while branch is not None and branch.parent is not None:
            if branch.prompt is leaf.prompt:
                branch.prompt = next(iter(branch.children.values())).prompt
            branch = branch.parent

    def _walk(self, turn: Turn | None, avoiding: Iterable[bytes] = ()) -> Walk:
        if turn is None:
            return Walk(self._root.parts, (), self._paths(avoiding))
        return Walk(turn.groups, turn.passed, self._paths(avoiding))

    def _count(self, leaf: Leaf, change: int) -> None:
        """It waits, or does not wait any more."""
        leaf.is_waiting = change > 0
        self.num_waiting += change
        branch: Branch | None = leaf.parent
        while branch is not None:
            branch.parts[leaf.group].num_waiting += change
            branch = branch.parent

    def _enter_parts(self, leaf: Leaf) -> None:
        """A new leaf is below each branch on its path."""
        node: Node = leaf
        branch: Branch | None = leaf.parent
        is_new = True  # to its parent's part of the group
        while branch is not None:
            is_first = leaf.group not in branch.parts
            part = branch.part(leaf.group)
            part.num_waiting += 1
            if is_new:
                part.children.add((node.rank, node))
            node, branch, is_new = branch, branch.parent, is_first

    def _leave_parts(self, leaf: Leaf) -> None:
        """Branches that have nothing else of its group forget the group."""
        node: Node = leaf
        branch: Branch | None = leaf.parent
        while branch is not None:
            part = branch.parts[leaf.group]
            part.children.remove((node.rank, node))
            if part.children:
                return
            del branch.parts[leaf.group]
            node, branch = branch, branch.parent

    def _paths(self, prompts: Iterable[bytes]) -> set[Node]:
        """The root, and whatever else shares a block with one of the prompts; empty where there are none."""
        found: set[Node] = set()  # membership only, never iterated
        for prompt in prompts:
            node: Node | None = self._root
            while isinstance(node, Branch):
                found.add(node)
                is_shared = node.prompt[node.start : node.end] == prompt[node.start : node.end]
                node = node.children.get(prompt[node.end : node.end + self._block_bytes]) if is_shared else None
            if node is not None:
                found.add(node)
        return found

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
        branch = Branch(parent, node.prompt, node.start, end, node.rank)
        parent.children[self._key(node)] = branch
        parent.replace(node, branch)
        node.parent, node.start, node.rank = branch, end, branch.next_rank()
        branch.children[self._key(node)] = node
        for group in node.groups():
            part = branch.part(group)
            part.num_waiting = node.num_waiting(group)
            part.children.add((node.rank, node))
        return branch

    def _merge(self, branch: Branch) -> Branch:
        """The only child takes the branch's place and edge; returns its new parent."""
        parent = branch.parent
        assert parent is not None
        (child,) = branch.children.values()
        parent.children[self._key(branch)] = child
        parent.replace(branch, child)
        child.parent, child.start = parent, branch.start
        return parent

    def _key(self, node: Node) -> _Key:
        block = node.prompt[node.start : min(node.end, node.start + self._block_bytes)]
        if block:
            return block
        assert isinstance(node, Leaf)
        return node.request.request_id

    def check_integrity(self) -> None:
        """Raises AssertionError where paths, counts and leaves disagree."""
        assert self._check(self._root) == len(self._leaves)

    def _check(self, branch: Branch) -> int:
        """The number of leaves below, which is at most a recursion per block of a prompt."""
        num_leaves = 0
        assert branch is self._root or len(branch.children) >= 2
        assert branch.parts.keys() == {group for child in branch.children.values() for group in child.groups()}
        for group, part in branch.parts.items():
            below = [child for child in branch.children.values() if group in child.groups()]
            assert [child for _, child in part.children] == sorted(below, key=lambda child: child.rank)
            assert part.num_waiting == sum(child.num_waiting(group) for child in below)
        for key, child in branch.children.items():
            assert child.parent is branch and child.start == branch.end and self._key(child) == key
            assert child.prompt[: child.start] == branch.prompt[: branch.end]
            if isinstance(child, Leaf):
                assert self._leaves[child.request.request_id] is child and child.end == len(child.prompt)
                num_leaves += 1
            else:
                assert child.end > child.start
                num_leaves += self._check(child)
        assert branch is self._root or any(child.prompt is branch.prompt for child in branch.children.values())
        return num_leaves
