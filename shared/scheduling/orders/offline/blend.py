"""Compute-bound and memory-bound requests together, in an order that keeps shared prefixes: BlendServe."""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from sortedcontainers import SortedDict

from shared.scheduling.orders.offline.density.bearings import Readers
from shared.scheduling.orders.offline.density.node import DensityLeaf, number_of
from shared.scheduling.orders.offline.density.scan import DualScan, Scanner
from shared.scheduling.orders.offline.density.tree import DensityTree
from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request

MAX_ERRORS = 256  # of estimates, that are looked back on
_HASH_BYTES = 8


class BlendOrder:
    """BlendServe section 3: what reads much KV beside what computes much, each depth first.

    The paper samples output lengths and sorts its tree before it serves. Here requests come at any time: the sampled
    ones run first, as ordinary requests for whose end nobody waits, and whatever ends changes the estimates, and with
    them the order, from then on. Before anything has ended, an answer is taken to have 256 tokens, about what chats
    have.
    """

    def __init__(self, block_size: int, sample_share: float, split_threshold: float) -> None:
        """``sample_share``: of the requests of unknown length; ``split_threshold``: see ``DensityTree``. Raises
        ValueError for a share outside [0, 1], a negative threshold, and a block size under 1."""
        if not 0.0 <= sample_share <= 1.0:
            raise ValueError(f"sample_share must be from 0 to 1, not {sample_share}")
        self._tree = DensityTree(block_size, split_threshold)
        self._block_size = block_size
        self._sample_share = sample_share
        self._samples: dict[str, SortedDict[tuple[bytes, int], DensityLeaf]] = {}  # that wait, by group and prompt
        self._readers = Readers(self._tree)
        self._errors: deque[float] = deque(maxlen=MAX_ERRORS)

    @property
    def num_waiting(self) -> int:
        return self._tree.num_waiting

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        leaf = self._tree.add(request, prompt, group, self._is_sample(request))
        if leaf.is_sample:
            self._wait_as_sample(leaf)
        self._readers.change()

    def take(self, request_id: str, reader: str | None = None) -> None:
        leaf = self._tree.leaf(request_id)
        leaf.is_left, leaf.expected_tokens = self._tree.is_left(leaf), leaf.expected
        if leaf.is_sample:
            self._leave_samples(leaf)
        else:
            self._readers.take(leaf, reader)
        self._tree.hold(leaf)
        self._readers.change(reader)

    def give_back(self, request_id: str) -> None:
        leaf = self._tree.leaf(request_id)
        self._tree.give_back(leaf)
        if leaf.is_sample:
            self._wait_as_sample(leaf)
        self._readers.change()

    def remove(self, request_id: str) -> None:
        leaf = self._tree.leaf(request_id)
        if leaf.is_sample and leaf.is_waiting:
            self._leave_samples(leaf)
        self._tree.remove(leaf)
        self._readers.change()

    def leave(self, reader: str) -> None:
        self._readers.leave(reader)

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        leaf = self._tree.leaf(request_id)
        if leaf.is_known or leaf.is_learnt or num_output_tokens < 1:
            return
        leaf.is_learnt = True
        if not leaf.is_sample:
            expected = leaf.expected if leaf.is_waiting else leaf.expected_tokens
            self._errors.append(abs(expected - num_output_tokens) / num_output_tokens)
        self._tree.learn(leaf, num_output_tokens)

    def remember(self) -> bytes:
        return self._tree.lengths.remember()

    def recall(self, data: bytes) -> None:
        if data:
            self._tree.recall(data)

    def details(self) -> Mapping[str, float]:
        """``output_length_error``: mean of |expected - actual| / actual over the last ones that ended, as they were
        expected to when they were taken, samples left out; ``output_lengths``: prefixes whose lengths are known;
        ``compute_share``: of the tokens that wait, those of units that are at least as dense as all together;
        ``units``: those, of which each is scanned as a whole; ``waiting_tokens`` that are to be computed for all that
        waits, and KV tokens that decodes will read for it, ``waiting_reads``."""
        figures = {"output_lengths": float(len(self._tree.lengths)), "units": float(self._tree.num_units)}
        if self._errors:
            figures["output_length_error"] = sum(self._errors) / len(self._errors)
        if self._tree.root.num_waiting_below:
            load, levels = self._tree.root.load, self._tree.levels
            figures |= {"waiting_tokens": float(load.tokens), "waiting_reads": load.double_reads / 2.0}
            figures["compute_share"] = sum(own.tokens for level, own in levels if level <= load.level) / max(
                1, sum(own.tokens for _, own in levels)
            )
        return figures

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        if turn is None:
            turn = Turn(dict.fromkeys([*self._tree.root.lines, *self._samples]))
        shown: dict[str, None] = {}
        for request in self._sampled(turn):
            shown[request.request_id] = None
            yield request
        left, right = self._readers.bearings(view.reader, turn.groups)
        hidden = (shown, turn.passed)
        scan = DualScan(
            self._tree,
            Scanner(self._tree.root, turn.groups, hidden, False, left),
            Scanner(self._tree.root, turn.groups, hidden, True, right),
            view.running_offline,
            turn.passed,
            shown,
            self._room(view),
            view.features,
        )
        yield from scan
        turn.ends_reading = scan.is_out_of_room

    def _room(self, view: OfflineView) -> int | None:
        """What offline requests may have of the KV, in tokens; None where nothing is known of that."""
        if not view.num_free_blocks:
            return None
        return self._block_size * (view.num_free_blocks + sum(each.num_blocks for each in view.running_offline))

    def _sampled(self, turn: Turn) -> Iterator[Request]:
        """By prompt, so that those that share one are together."""
        of_both = self._samples if len(self._samples) < len(turn.groups) else turn.groups
        parts = [self._sampled_of(group, turn) for group in of_both if group in turn.groups and group in self._samples]
        for _, leaf in heapq.merge(*parts):
            if leaf.group in turn.groups and leaf.request.request_id not in turn.passed:
                yield leaf.request

    def _sampled_of(self, group: str, turn: Turn) -> Iterator[tuple[tuple[bytes, int], DensityLeaf]]:
        for each in self._samples[group].items():
            if group not in turn.groups:
                return
            yield each

    def _is_sample(self, request: Request) -> bool:
        """By its id, so that it stays one whenever it comes."""
        if request.ends_at_limit or not self._sample_share:
            return False
        digest = blake2b(request.request_id.encode(), digest_size=_HASH_BYTES).digest()
        return int.from_bytes(digest) < self._sample_share * 256.0**_HASH_BYTES

    def _wait_as_sample(self, leaf: DensityLeaf) -> None:
        waiting = self._samples.setdefault(leaf.group, SortedDict())
        waiting[leaf.prompt, number_of(leaf.rank)] = leaf

    def _leave_samples(self, leaf: DensityLeaf) -> None:
        waiting = self._samples[leaf.group]
        del waiting[leaf.prompt, number_of(leaf.rank)]
        if not waiting:
            del self._samples[leaf.group]

    def check_integrity(self) -> None:
        """Raises AssertionError where the tree, its sums and the samples disagree."""
        self._tree.check_integrity()
        samples = [leaf for waiting in self._samples.values() for leaf in waiting.values()]
        assert all(leaf.is_sample and leaf.is_waiting and not leaf.is_placed for leaf in samples)
        assert all(self._samples.values())
        assert len(samples) + self._tree.root.num_waiting_below == self.num_waiting
