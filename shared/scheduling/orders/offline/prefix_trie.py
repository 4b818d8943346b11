"""T_p of HyGen Alg. 3: offline requests in a prefix trie, whose depth-first order puts those that share prompts next
to each other.

Requests are of groups, and each branch knows what is below it of each, so that the order of some groups is read
without a look at the others.
"""

from collections.abc import Iterable, Iterator

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.prefix_node import Branch, Leaf, Node
from shared.scheduling.orders.offline.prefix_tree import PrefixTree
from shared.scheduling.orders.offline.prefix_walk import Walk, below, outward, waits_below
from shared.scheduling.request import Request


class PrefixTrie(PrefixTree[Leaf]):
    """Insert, remove and hold in time proportional to the number of edges on a request's path.

    The order is depth first, siblings in the order in which the first of each came. A request that is held (it runs
    somewhere) is left out of the order and keeps its place in it, however many come and go meanwhile.
    """

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        super().__init__(block_size)
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
            is_passed, block = end == node.end, prompt[end : end + self._block_bytes]
            node = node.children.get(block) if is_passed and block and isinstance(node, Branch) else None

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        """A request that waits. ``prompt``: its packed tokens, kept by reference. Raises ValueError for an id that is
        here already."""
        self._require_new(request.request_id)
        parent = self._parent_for(prompt)
        leaf = Leaf(parent, prompt, parent.end, len(prompt), parent.next_rank(), request, group)
        self._hang(leaf)
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
        leaf = self._leaves[request_id]
        if leaf.is_waiting:
            self._count(leaf, -1)
        self._leave_parts(leaf)
        self._cut(leaf)

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

    def _new_branch(self, parent: Branch | None, prompt: bytes, start: int, end: int) -> Branch:
        return Branch(parent, prompt, start, end, 0)

    def _before(self, node: Node) -> None:
        """All that matters is done afterwards."""

    def _is_split(self, branch: Branch, node: Node) -> None:
        assert branch.parent is not None
        branch.parent.replace(node, branch)
        node.rank = branch.next_rank()
        for group in node.groups():
            part = branch.part(group)
            part.num_waiting = node.num_waiting(group)
            part.children.add((node.rank, node))

    def _is_merged(self, branch: Branch, node: Node) -> None:
        assert branch.parent is not None
        branch.parent.replace(branch, node)

    def check_integrity(self) -> None:
        """Raises AssertionError where paths, counts and leaves disagree."""
        super().check_integrity()
        self._check_parts(self._root)

    def _check_parts(self, branch: Branch) -> None:
        assert branch.parts.keys() == {group for child in branch.children.values() for group in child.groups()}
        for group, part in branch.parts.items():
            below = [child for child in branch.children.values() if group in child.groups()]
            assert [child for _, child in part.children] == sorted(below, key=lambda child: child.rank)
            assert part.num_waiting == sum(child.num_waiting(group) for child in below)
        for child in branch.children.values():
            if isinstance(child, Branch):
                self._check_parts(child)
