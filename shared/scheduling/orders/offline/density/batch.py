"""What runs at a reader, as the dual scanner weighs it against what waits."""

from bisect import insort
from collections.abc import Iterable, Sequence

from shared.scheduling.orders.offline.density.node import NO_LOAD, DensityLeaf, Load
from shared.scheduling.orders.offline.density.tree import DensityTree
from shared.scheduling.request import Request

WORTH_BLENDING = 2  # requests whose densities differ by less have little to give each other

Future = tuple[int, int]  # of a request: steps until it ends, and the KV tokens that it holds now


class RunningBatch:
    """Requests with KV, and those that have entered the step. Those that were taken from the right are memory-bound."""

    def __init__(self, tree: DensityTree, running: Iterable[Request], room: int) -> None:
        """``room``: KV tokens that they may have together."""
        self._tree = tree
        self._room = room
        self._reads = 0  # of a step in which all decode
        self._tokens = 0.0  # what goes with these reads, by the density of each
        self._bound_tokens = self._bound_reads = 0  # of those that are memory-bound, over their lives; reads are double
        self._rest_tokens = self._rest_reads = 0  # of those, what is still to do
        self._futures: list[Future] = []  # ascending
        for request in running:
            leaf = tree.known(request.request_id)
            if leaf is not None and not leaf.is_waiting:
                self._futures.append(self._add(leaf, leaf.expected_tokens, request.num_tokens, leaf.is_left))
        self._futures.sort()

    def enter(self, leaf: DensityLeaf) -> None:
        """One that waits has entered the step."""
        insort(self._futures, self._add(leaf, leaf.expected, leaf.request.num_tokens, self._tree.is_left(leaf)))

    @property
    def density(self) -> float:
        """Of all that is to do: what waits, and what memory-bound requests have left to do."""
        waiting = self._tree.root.load if self._tree.root.num_waiting_below else NO_LOAD
        to_do = Load(waiting.tokens + self._rest_tokens, waiting.double_reads + self._rest_reads)
        return to_do.density if to_do.double_reads else 0.0

    def lacks_compute(self, of_all: float) -> bool:
        """A step reads more than goes with what is computed, for the density ``of_all``."""
        return self._tokens < of_all * self._reads

    def takes(self, density: float, of_all: float) -> bool:
        """What is so dense: not what is denser than all, beside memory-bound requests that it is to be blended with,
        while a step has enough of that for what they read by now."""
        if not self._bound_reads:
            return True
        of_bound = Load(self._bound_tokens, self._bound_reads).density
        if density <= max(of_all, WORTH_BLENDING * of_bound):
            return True
        return self.lacks_compute(of_all)

    def has_room(self, leaf: DensityLeaf, share: float = 1.0) -> bool:
        """For as long as it is expected to run, in this share of the room; alone it has."""
        if not self._futures:
            return True
        futures = self._futures.copy()
        insort(futures, (leaf.expected, leaf.request.num_tokens))
        return most_held(futures, leaf.expected) <= share * self._room

    def _add(self, leaf: DensityLeaf, expected: int, held: int, is_left: bool) -> Future:
        """Called for all that runs in each reading, so in few steps."""
        num_prompt_tokens = leaf.request.num_tokens
        tokens = leaf.num_own_tokens + expected
        double_reads = (2 * num_prompt_tokens + expected) * expected
        rest = max(1, num_prompt_tokens + expected - held)
        self._reads += held
        self._tokens += 2 * held * tokens / double_reads
        if not is_left:
            self._bound_tokens += tokens
            self._bound_reads += double_reads
            self._rest_tokens += rest
            self._rest_reads += (2 * held + rest) * rest
        return rest, held


def most_held(futures: Sequence[Future], num_steps: int) -> int:
    """Of requests that get a token each step until they end, those first that end first: the KV tokens that they hold
    together in the fullest of the next ``num_steps``."""
    most = held = 0
    for number, (rest, tokens) in enumerate(reversed(futures), start=1):
        held += tokens
        if rest <= num_steps:
            most = max(most, held + number * rest)
    return most
