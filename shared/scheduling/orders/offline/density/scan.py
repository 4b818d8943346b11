"""The dual scanner of BlendServe (section 3.4): the sorted tree read from both its ends at once."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from itertools import chain

from shared.latency.features import BatchFeatures
from shared.scheduling.orders.offline.density.batch import RunningBatch
from shared.scheduling.orders.offline.density.bearings import Bearings
from shared.scheduling.orders.offline.density.node import Bundle, DensityBranch, DensityLeaf, Placed
from shared.scheduling.orders.offline.density.tree import DensityTree
from shared.scheduling.request import Request

NOTHING_YET = BatchFeatures()  # never changed: of readings for no step


class Scanner:
    """Goes through all requests of the groups, depth first from one end. ``path``: the nodes of the root's lines and
    below, down to the request at which it stands; empty once there is none."""

    def __init__(
        self,
        root: DensityBranch,
        groups: Collection[str],
        hidden: Iterable[Container[str]],
        backwards: bool,
        bearings: Bearings,
    ) -> None:
        """``groups`` may lose members meanwhile; ``hidden``: ids that are passed over, growing meanwhile."""
        self.path: list[Placed] = []
        self._root = root
        self._groups = groups
        self._hidden = tuple(hidden)
        self._backwards = backwards
        self._bearings = bearings
        self._iterators = [self._children(root)]

    def settle(self) -> bool:
        """Stand at the first request that is to be shown, which may be where it stands. False where there is none."""
        if self.path and self._is_shown(self.path[-1]):
            return True
        while self._iterators:
            del self.path[len(self._iterators) - 1 :]
            node = next(self._iterators[-1], None)
            if node is None:
                self._iterators.pop()
                continue
            self.path.append(node)
            if not isinstance(node, DensityLeaf):
                self._iterators.append(self._children(node))
            elif self._is_shown(node):
                return True
        return False

    @property
    def leaf(self) -> DensityLeaf:
        """At which it stands."""
        leaf = self.path[-1]
        assert isinstance(leaf, DensityLeaf)
        return leaf

    def _is_shown(self, node: Placed) -> bool:
        assert isinstance(node, DensityLeaf)
        request_id = node.request.request_id
        return node.group in self._groups and not any(request_id in each for each in self._hidden)

    def _children(self, owner: DensityBranch | Bundle) -> Iterator[Placed]:
        own = self._bearings.own.get(owner)
        if own is None and not self._bearings.avoided:
            return self._in_line(owner)
        return self._by_bearings(owner, own)

    def _by_bearings(self, owner: DensityBranch | Bundle, own: DensityBranch | None) -> Iterator[Placed]:
        avoided = self._bearings.avoided
        if own is not None and own.waits(self._groups):
            yield own
        yield from (node for node in self._in_line(owner) if node is not own and node not in avoided)
        if avoided:
            yield from (node for node in self._in_line(owner) if node is not own and node in avoided)

    def _in_line(self, owner: DensityBranch | Bundle) -> Iterator[Placed]:
        groups, backwards, start = self._groups, self._backwards, self._bearings.start
        if owner is not self._root or start is None:
            return owner.in_line(groups, backwards)
        laps = owner.in_line(groups, backwards, low=start), owner.in_line(groups, backwards, high=start)
        return chain(*(reversed(laps) if backwards else laps))


class DualScan:
    """Requests from the compute-bound end, the left, and from the memory-bound one, the right, so that what runs has
    about the density of all that waits.

    With rho_L and rho_R, the densities where the scanners stand, M_L + M_R = M and M_L rho_L + M_R rho_R = M rho; they
    are solved again for each request. Where the ends are not on both sides of rho, no mixture has its density: all of
    it comes from the end that is nearer to that; and from the left where the ends are not in order, since within what
    shares a prefix they need not be. Next is the side that has the smaller share of its part in use. M itself is in
    both shares, and so does not matter.

    Where both stand in one unit, the densities are those of the largest parts of it that differ.

    Where M is known, requests enter on conditions, and the scan ends where neither side's next one may. The paper's
    pool is so large that as many requests begin, grow and end at any time. Here all may begin at once: then they read
    little at first, and all the compute-bound work would be gone before they read much. So what is memory-bound enters
    while it fits M_R in each step of its life, as those that run grow and end; and what is compute-bound while a step
    computes less than goes with what it reads now, for the density of all that is still to be done, which holds after
    the last memory-bound request has entered too. Beside nothing memory-bound all that has room enters.
    """

    def __init__(
        self,
        tree: DensityTree,
        left: Scanner,
        right: Scanner,
        running: Iterable[Request],
        passed: Iterable[str],
        shown: dict[str, None],
        room: int | None = None,
        features: BatchFeatures = NOTHING_YET,
    ) -> None:
        """``running``: what has KV; ``passed``, ``shown``: ids that count as if they ran. What is shown here is added
        to the second, which is to be hidden to both scanners. ``room``: M, in KV tokens; None ends nowhere.
        ``features``: of the step, as it stands whenever it is looked at."""
        self._tree = tree
        self._left, self._right = left, right
        self._running = running
        self._passed = passed
        self._shown = shown
        self._room = room
        self._features = features
        self._batch: RunningBatch | None = None  # of what runs and of what has entered here; counted once it matters
        self.is_out_of_room = False
        self._density = tree.root.load.density if tree.root.num_waiting_below else 0.0
        self._in_use: list[float] | None = None  # KV tokens, left and right; counted once it matters

    def __iter__(self) -> Iterator[Request]:
        while self._left.settle() and self._right.settle():
            leaf = self._next()
            if leaf is None:
                self.is_out_of_room = True
                return
            self._shown[leaf.request.request_id] = None
            if self._in_use is not None:
                self._in_use[not self._tree.is_left(leaf)] += mean_kv_tokens(leaf, leaf.expected)
            num_before = self._num_in_step()
            yield leaf.request
            if self._batch is not None and self._num_in_step() > num_before:
                self._batch.enter(leaf)

    def _next(self) -> DensityLeaf | None:
        """None where neither may enter."""
        if self._room is None:
            return (self._left if self._takes_left() else self._right).leaf
        if self._batch is None:
            self._batch = RunningBatch(self._tree, self._running, self._room)
        self._density = self._batch.density
        left, right = self._ends()
        part = self._left_part(left, right)
        sides = [(self._left.leaf, left, part), (self._right.leaf, right, 1.0 - part)]
        if not self._batch.lacks_compute(self._density):
            sides.reverse()
        may_enter = (leaf for leaf, end, own in sides if own and self._may_enter(leaf, end.load.density, own))
        return next(may_enter, None)

    def _may_enter(self, leaf: DensityLeaf, density: float, part: float) -> bool:
        """What could never have enough room is not waited for: whoever reads passes over what its executor cannot
        hold."""
        assert self._batch is not None and self._room is not None
        if leaf.request.max_total_tokens > self._room:
            return True
        share = part if density < self._density else 1.0
        return self._batch.takes(density, self._density) and self._batch.has_room(leaf, share)

    def _takes_left(self) -> bool:
        part = self._left_part(*self._ends())
        if part in (0.0, 1.0):
            return part == 1.0
        if self._in_use is None:
            self._in_use = self._count_use()
        left, right = self._in_use
        return left * (1.0 - part) <= right * part

    def _num_in_step(self) -> int:
        return self._features.prefill_requests + self._features.decode_requests

    def _ends(self) -> tuple[Placed, Placed]:
        """Where the scanners stand: of each the largest part that the other does not stand in; the request where they
        meet."""
        pairs = zip(self._left.path, self._right.path, strict=False)
        return next(((left, right) for left, right in pairs if left is not right), (self._left.leaf, self._right.leaf))

    def _left_part(self, left: Placed, right: Placed) -> float:
        """M_L / M, from 0 to 1."""
        if left is right:
            return 1.0
        rho_left, rho_right = left.load.density, right.load.density
        if rho_left <= rho_right:
            return 1.0
        return min(1.0, max(0.0, (self._density - rho_right) / (rho_left - rho_right)))

    def _count_use(self) -> list[float]:
        """Of what runs, and of what was shown, on the side from which it will be taken."""
        in_use = self._count_running()
        for request_id in chain(self._passed, self._shown):
            leaf = self._tree.leaf(request_id)
            in_use[not self._tree.is_left(leaf)] += mean_kv_tokens(leaf, leaf.expected)
        return in_use

    def _count_running(self) -> list[float]:
        """On the side from which each was taken. It counts with what it has on average over its life, or with what it
        has now where that is more."""
        in_use = [0.0, 0.0]
        for request in self._running:
            leaf = self._tree.known(request.request_id)
            if leaf is not None and not leaf.is_waiting:
                expected = max(mean_kv_tokens(leaf, leaf.expected_tokens), request.num_computed_tokens)
                in_use[not leaf.is_left] += expected
        return in_use


def mean_kv_tokens(leaf: DensityLeaf, num_output_tokens: int) -> float:
    """That a request holds, over its life: p + d / 2."""
    return leaf.request.num_tokens + num_output_tokens / 2
