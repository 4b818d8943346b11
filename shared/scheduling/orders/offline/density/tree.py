"""The resource-aware prefix tree of BlendServe, and the lengths answers are expected to have (sections 3.1, 3.2)."""

from collections import deque
from collections.abc import Iterator

from shared.scheduling.orders.offline.density.integrity import check_places
from shared.scheduling.orders.offline.density.lengths import PRIOR_TOKENS, OutputLengths
from shared.scheduling.orders.offline.density.node import DensityBranch, DensityLeaf, Placed, level_of
from shared.scheduling.orders.offline.density.placing import SortedPrefixTree
from shared.scheduling.orders.offline.prefix_node import Branch, Node
from shared.scheduling.request import Request

MAX_TOLD = 32  # branches that hear of a new estimate at each change


class DensityTree(SortedPrefixTree):
    """A request of unknown length is expected to be as long as the mean of those that ended with it as their neighbour,
    else of all below the nearest branch over it below which any has ended. For a branch without any, that is its
    siblings' mean, as in section 3.2. What other branches inherit is told to ``MAX_TOLD`` of them at each change.
    """

    def __init__(self, block_size: int, split_threshold: float) -> None:
        """As ``SortedPrefixTree``."""
        self.lengths = OutputLengths(block_size)
        self._stale: deque[DensityBranch | Iterator[DensityBranch]] = deque()
        super().__init__(block_size, split_threshold)
        self._root.estimate = self._root.inherited = PRIOR_TOKENS
        self.num_waiting = 0

    def leaf(self, request_id: str) -> DensityLeaf:
        """Raises KeyError for an unknown id."""
        return self._leaves[request_id]

    def known(self, request_id: str) -> DensityLeaf | None:
        return self._leaves.get(request_id)

    def path(self, prompt: bytes) -> list[DensityBranch]:
        """The branches that share a block with a prompt, from the root down."""
        return [node for node in self._path(prompt) if isinstance(node, DensityBranch) and node is not self._root]

    def add(self, request: Request, prompt: bytes, group: str, is_sample: bool) -> DensityLeaf:
        """It waits; a sample is in no line. ``prompt``: its packed tokens, kept by reference. Raises ValueError for an
        id that is here already."""
        self._require_new(request.request_id)
        parent = self._parent_for(prompt)
        assert isinstance(parent, DensityBranch)
        most = max(1, request.max_total_tokens - request.num_tokens)
        number = self._next_number()
        leaf = DensityLeaf(parent, prompt, parent.end, len(prompt), number, request, group, True, most, is_sample)
        self._hang(leaf)
        self.num_waiting += 1
        self._present(leaf)
        return leaf

    def hold(self, leaf: DensityLeaf) -> None:
        """A waiting one is left out until ``give_back``."""
        assert leaf.is_waiting, f"request {leaf.request.request_id} is held already"
        self._withdraw(leaf)
        leaf.is_waiting = False
        self.num_waiting -= 1

    def give_back(self, leaf: DensityLeaf) -> None:
        """A held one waits again, at its old place among its like."""
        assert not leaf.is_waiting, f"request {leaf.request.request_id} is not held"
        leaf.is_waiting = True
        self.num_waiting += 1
        self._present(leaf)

    def remove(self, leaf: DensityLeaf) -> None:
        """Forget one, waiting or held."""
        if leaf.is_waiting:
            self._withdraw(leaf)
            self.num_waiting -= 1
        self._cut(leaf)

    def learn(self, leaf: DensityLeaf, num_output_tokens: int) -> None:
        """One of unknown length has ended."""
        branch: DensityBranch | None = leaf.parent
        while branch is not None:
            if branch.seen is None:
                branch.seen = self.lengths.begin(branch.prompt[: branch.end])
            self.lengths.count(branch.seen, num_output_tokens, branch is leaf.parent)
            self._estimate(branch)
            branch = branch.parent
        self._tell_stale()

    def recall(self, data: bytes) -> None:
        """Lengths that another tree has learnt, before anything is added. Raises ValueError for other bytes."""
        assert not self._leaves, "what is known of lengths comes before requests"
        self.lengths.recall(data)
        self._root.seen = self.lengths.of(b"")
        self._estimate(self._root)

    def is_left(self, leaf: DensityLeaf) -> bool:
        """On the compute-bound side: of what it is part of, the largest whose density is not about the root's is denser
        than that; where there is no such, the request is at least as dense."""
        if not self._root.num_waiting_below:
            return True
        of_root = self._root.load
        node: Placed | DensityBranch = leaf
        path: list[Placed] = []
        while leaf.is_placed and node is not self._root:
            path.append(node)
            node = self.home(node)
        for each in reversed(path):
            level = each.load.level if each is leaf else level_of(each.rank)
            if level != of_root.level:
                return level < of_root.level
        return leaf.load.density >= of_root.density

    def _is_split(self, branch: Branch, node: Node) -> None:
        """It knows at least what the node does."""
        assert isinstance(branch, DensityBranch) and isinstance(node, DensityBranch | DensityLeaf)
        branch.seen = self.lengths.of(branch.prompt[: branch.end])
        if branch.seen is None and isinstance(node, DensityBranch) and node.seen is not None:
            branch.seen = self.lengths.begin(branch.prompt[: branch.end])
            branch.seen.num_requests, branch.seen.num_tokens = node.seen.num_requests, node.seen.num_tokens
        self._estimate(branch)
        self._present(node)
        if isinstance(node, DensityBranch):
            self._estimate(node)

    def _is_merged(self, branch: Branch, node: Node) -> None:
        assert isinstance(node, DensityBranch | DensityLeaf)
        self._present(node)
        if isinstance(node, DensityBranch):
            self._estimate(node)

    def _estimate(self, branch: DensityBranch) -> None:
        """What has ended below it, or over it, is other than it was."""
        seen, parent = branch.seen, branch.parent
        inherited = seen.mean if seen is not None else None
        if inherited is None:
            inherited = parent.inherited if parent is not None else PRIOR_TOKENS
        own = seen.own_mean if seen is not None else None
        if inherited != branch.inherited:
            branch.inherited = inherited
            if not branch.is_stale:
                branch.is_stale = True
                self._stale.append(branch)
        estimate = inherited if own is None else own
        if estimate != branch.estimate:
            branch.estimate = estimate
            for bundle in branch.bundles.values():
                self._restate(bundle, 0)

    def _tell_stale(self) -> None:
        """Some of those branches below of which nothing has ended."""
        for _ in range(MAX_TOLD):
            if not self._stale:
                return
            first = self._stale[0]
            if isinstance(first, DensityBranch):
                first.is_stale = False
                first = self._stale[0] = iter(first.branches())
            branch = next(first, None)
            if branch is None:
                self._stale.popleft()
            elif branch.seen is None:
                self._estimate(branch)

    def check_integrity(self) -> None:
        """Raises AssertionError where paths, loads, places, units and counts disagree."""
        super().check_integrity()
        check_places(self)
        leaves = self._leaves.values()
        assert self.num_waiting == sum(leaf.is_waiting for leaf in leaves)
        assert all(leaf.is_placed == (leaf.is_waiting and not leaf.is_sample) for leaf in leaves)
