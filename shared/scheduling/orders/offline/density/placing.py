"""Where what waits stands in a tree that is sorted by density: BlendServe, Alg. 1 and 2."""

from sortedcontainers import SortedList

from shared.scheduling.orders.offline.density.node import (
    Bundle,
    DensityBranch,
    DensityLeaf,
    Load,
    Placed,
    level_of,
    number_of,
    rank_of,
)
from shared.scheduling.orders.offline.prefix_node import Branch, Node
from shared.scheduling.orders.offline.prefix_tree import PrefixTree

HYSTERESIS = 2  # an open branch closes when it wastes so many times what lets it open


class SortedPrefixTree(PrefixTree[DensityLeaf]):
    """Children are sorted by density, descending (Alg. 1), those of about the same density by arrival, over what waits.
    Loads are kept along the path of whatever comes and goes, exactly.

    A branch is opened (Alg. 2), its children are ranked with all other units, where the prompt tokens that may be
    computed again for that, of its prefix once for each child, are at most ``split_threshold`` of the tokens below it.
    The paper's t is an absolute number of tokens that is divided by the number of children at each level; a share of
    the tokens below bounds the same waste, is the same for pools of any size, and changes along one path only.
    """

    def __init__(self, block_size: int, split_threshold: float) -> None:
        """Raises ValueError for a negative threshold, and a block size under 1."""
        if not split_threshold >= 0:
            raise ValueError(f"split_threshold must not be negative: {split_threshold}")
        self._split_threshold = split_threshold
        self._num_numbers = 0
        self._levels: dict[int, list[int]] = {}  # of the units there: [tokens, twice the reads]
        self.num_units = 0
        super().__init__(block_size)
        self._root: DensityBranch

    @property
    def root(self) -> DensityBranch:
        return self._root

    @property
    def levels(self) -> list[tuple[int, Load]]:
        """Units by level, densest first, as one load each."""
        return [(level, Load(*self._levels[level])) for level in sorted(self._levels)]

    def rank_at(self, level: int, share: float) -> int:
        """Of the units of a level that are in the longest line, the one ahead of which so many stand."""
        line = max(self._root.lines.values(), key=len)
        first, last = line.bisect_left((rank_of(level, 0),)), line.bisect_left((rank_of(level + 1, 0),))
        index = first + int((last - first) * share)
        return line[index][0] if index < last else rank_of(level + 1, 0)

    def home(self, node: Placed) -> DensityBranch | Bundle:
        """In whose lines it is while anything of it waits."""
        parent = node.parent
        assert parent is not None
        if isinstance(node, DensityLeaf) and not node.is_known:
            return parent.bundles[node.num_output_tokens.bit_length()]
        return self._root if parent.is_open else parent

    def _next_number(self) -> int:
        self._num_numbers += 1
        return self._num_numbers

    def _new_branch(self, parent: Branch | None, prompt: bytes, start: int, end: int) -> DensityBranch:
        assert parent is None or isinstance(parent, DensityBranch)
        return DensityBranch(parent, prompt, start, end, self._next_number())

    def _before(self, node: Node) -> None:
        assert isinstance(node, DensityBranch | DensityLeaf)
        self._withdraw(node)

    def _present(self, node: DensityBranch | DensityLeaf) -> None:
        """All of it that waits takes its place, and counts, below its parent."""
        parent = node.parent
        assert parent is not None
        if isinstance(node, DensityLeaf):
            if not node.is_waiting or node.is_sample:
                return
            if not node.is_known:
                self._bundle(node)
                return
            node.is_placed = True
            count = 1
        else:
            node.is_apart = False
            count = node.num_waiting_below
            if not count:
                return
        load = node.load
        node.rank = rank_of(load.level, number_of(node.rank))
        for group in node.lines_of():
            self._show(node, group)
        parent.num_placed += 1
        if parent.is_open:
            self._tally(node.rank, load, 1)
        self._shift(parent, load, count)
        if isinstance(node, DensityBranch) and self.is_misplaced(node):
            self._open(node)

    def _withdraw(self, node: DensityBranch | DensityLeaf) -> None:
        """As if nothing of it waited."""
        parent = node.parent
        assert parent is not None
        if isinstance(node, DensityLeaf):
            if not node.is_placed:
                return
            if not node.is_known:
                self._unbundle(node)
                return
            node.is_placed = False
            count = 1
        else:
            if node.is_open:
                self._close(node)
            node.is_apart = True
            count = node.num_waiting_below
            if not count:
                return
        for group in node.lines_of():
            self._hide(node, group)
        parent.num_placed -= 1
        tokens, double_reads = load = node.load
        if parent.is_open:
            self._tally(node.rank, load, -1)
        self._shift(parent, Load(-tokens, -double_reads), -count)

    def _bundle(self, leaf: DensityLeaf) -> None:
        parent, bits = leaf.parent, leaf.num_output_tokens.bit_length()
        bundle = parent.bundles.get(bits)
        if bundle is None:
            bundle = parent.bundles[bits] = Bundle(parent, self._next_number())
            parent.num_placed += 1
        leaf.rank = number_of(leaf.rank)
        leaf.is_placed = True
        bundle.count(leaf, 1)
        self._show(leaf, leaf.group)
        self._restate(bundle, 1)

    def _unbundle(self, leaf: DensityLeaf) -> None:
        parent, bits = leaf.parent, leaf.num_output_tokens.bit_length()
        bundle = parent.bundles[bits]
        self._hide(leaf, leaf.group)
        leaf.is_placed = False
        bundle.count(leaf, -1)
        if not bundle.num_waiting:
            del parent.bundles[bits]
            parent.num_placed -= 1
        self._restate(bundle, -1)

    def _restate(self, bundle: Bundle, change: int) -> None:
        """So many more wait in it, or the estimate is another: so is its load."""
        before, after, parent = bundle.load, bundle.expected_load(), bundle.parent
        bundle.load = after
        self._rerank(bundle, parent.is_open, before, after)
        more = Load(after.tokens - before.tokens, after.double_reads - before.double_reads)
        self._shift(parent, more, change)

    def _rerank(self, node: Bundle | DensityBranch, is_unit: bool, before: Load, after: Load) -> None:
        """Its place, for its new load; it is in lines where anything of it waits."""
        rank = rank_of(after.level, number_of(node.rank)) if after.tokens else node.rank
        if is_unit and rank == node.rank and before.tokens and after.tokens:
            sums = self._levels[level_of(rank)]
            sums[0] += after.tokens - before.tokens
            sums[1] += after.double_reads - before.double_reads
            return
        if is_unit and before.tokens:
            self._tally(node.rank, before, -1)
        if rank != node.rank:
            home = self._root if is_unit else node.parent
            assert home is not None
            for group in node.lines_of():
                line = home.lines[group]
                line.remove((node.rank, node))
                line.add((rank, node))
            node.rank = rank
        if is_unit and after.tokens:
            self._tally(rank, after, 1)

    def _shift(self, branch: DensityBranch, more: Load, change: int) -> None:
        """So much more load, of so many more requests, below a branch: so it is for all those over it."""
        tokens, double_reads = more
        node, wants_change = branch, False
        while (parent := node.parent) is not None:
            before = node.load
            node.tokens += tokens
            node.double_reads += double_reads
            node.num_waiting_below += change
            after = node.load
            if not before.tokens or not after.tokens:
                parent.num_placed += bool(after.tokens) - bool(before.tokens)
                tokens = after.tokens - before.tokens
            if not node.is_open:
                self._rerank(node, parent.is_open, before, after)
            wants_change = wants_change or self.is_misplaced(node)
            node = parent
        node.tokens += tokens
        node.double_reads += double_reads
        node.num_waiting_below += change
        if wants_change:
            self._settle(branch)

    def is_misplaced(self, branch: DensityBranch) -> bool:
        """Alg. 2: it should be open and is not, or the other way round."""
        assert branch.parent is not None
        waste, bound = branch.num_prefix_tokens * branch.num_placed, self._split_threshold * branch.tokens
        if branch.is_open:
            return waste > HYSTERESIS * bound
        return branch.parent.is_open and not branch.is_apart and branch.num_waiting_below > 0 and waste <= bound

    def _settle(self, branch: DensityBranch) -> None:
        """Open and close what should be on the path to it, from the root on."""
        path = []
        node = branch
        while node.parent is not None:
            path.append(node)
            node = node.parent
        for each in reversed(path):
            if self.is_misplaced(each):
                if each.is_open:
                    self._close(each)
                else:
                    self._open(each)

    def _open(self, branch: DensityBranch) -> None:
        """Its children become units; so do theirs, where they should be open."""
        self._tally(branch.rank, branch.load, -1)
        for group, line in branch.lines.items():
            of_root = self._root.lines[group]
            of_root.remove((branch.rank, branch))
            of_root.update(line)
        branch.lines = {}
        branch.is_open = True
        for node in branch.placed():
            self._tally(node.rank, node.load, 1)
        for child in branch.branches():
            if self.is_misplaced(child):
                self._open(child)

    def _close(self, branch: DensityBranch) -> None:
        """It is a unit with all that is below it, where the branch over it is open."""
        for child in branch.branches():
            if child.is_open:
                self._close(child)
        branch.is_open = False
        if not branch.num_waiting_below:
            return
        branch.rank = rank_of(branch.load.level, number_of(branch.rank))
        for node in branch.placed():
            self._tally(node.rank, node.load, -1)
            for group in node.lines_of():
                self._root.lines[group].remove((node.rank, node))
                if group not in branch.lines:
                    branch.lines[group] = SortedList()
                    self._root.lines[group].add((branch.rank, branch))
                branch.lines[group].add((node.rank, node))
        self._tally(branch.rank, branch.load, 1)

    def _show(self, node: Placed, group: str) -> None:
        """In its home's line, and its home in that one's where it had nothing of the group."""
        while True:
            home = self.home(node)
            line = home.lines.get(group)
            if line is not None:
                line.add((node.rank, node))
                return
            home.lines[group] = SortedList([(node.rank, node)])
            if home is self._root:
                return
            node = home

    def _hide(self, node: Placed, group: str) -> None:
        while True:
            home = self.home(node)
            line = home.lines[group]
            line.remove((node.rank, node))
            if line:
                return
            del home.lines[group]
            if home is self._root:
                return
            node = home

    def _tally(self, rank: int, load: Load, sign: int) -> None:
        """A unit comes, 1, or goes, -1."""
        self.num_units += sign
        level = level_of(rank)
        sums = self._levels.setdefault(level, [0, 0])
        sums[0] += sign * load.tokens
        sums[1] += sign * load.double_reads
        if not sums[0]:
            del self._levels[level]
