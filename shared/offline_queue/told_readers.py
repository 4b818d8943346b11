"""What a scheduler has told its executor of how many offline requests will read which blocks, and what it tells next.

How many requests begin with a prompt up to each of its blocks (``PromptDemand``) is a step function: a few runs of
blocks with the same number describe a path. A request that enters is told with the runs of its whole path. Requests
that come to the pool and end elsewhere change what was told; so a bounded number of runs is looked up anew with each
plan, in turns, and told again where they are off. The executor corrects for those that end there itself
(``BlockReaders``).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shared.offline_queue.prompt_demand import PromptDemand
from shared.protocol.steps import ReaderCounts
from shared.scheduling.kv.block_hash import HASH_BYTES
from shared.scheduling.kv.prefix_cache import PrefixCacheMirror
from shared.scheduling.request import OFFLINE

MAX_LOOKED_UP = 32  # runs with one plan
MAX_USUAL = 8  # requests with one plan whose prompts are hashed for that
MAX_CHANGED_BLOCKS = 1024  # told again with one plan, but for the rest of one run; 16 bytes each
MAX_CAUGHT_UP = 32  # requests of a pool that was there before, with one plan
MIN_TOLD = 1024  # requests, below which those that are gone are not looked for
OFF_BY = 4  # a count is told again where it is off by more than a 4th, or is 0 where it was not, or the other way round

Path: TypeAlias = tuple[bytes, Sequence[bytes]]  # of a request: its packed prompt, and the hashes of its full blocks


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks [start, end) of a request's prompt, as the executor has been told of them."""

    request_id: str
    prompt: bytes  # packed
    start: int
    end: int
    hashes: bytes  # of these blocks, one behind the other
    num_readers: int


class ToldReaders:
    """Of one executor. Runs are kept while a request that they were told with is held there, or somebody will read them
    and they are in its cache: no more than the cache has blocks."""

    def __init__(
        self,
        demand: PromptDemand,
        cache: PrefixCacheMirror,
        is_held: Callable[[str], bool],
        hashes_of: Callable[[str], Sequence[bytes]],
        now_s: float,
    ) -> None:
        """``cache``: the executor's, as it tells it; of a request's id: whether the executor has it, ``is_held``, and
        the hashes of its full blocks, ``hashes_of``; ``now_s``: from then on all is told anew."""
        self._demand = demand
        self._cache = cache
        self._is_held = is_held
        self._hashes_of = hashes_of
        self._since_s = now_s
        self._num_words = 0
        self._runs = OrderedDict[bytes, _Run]()  # by the hash of their last block; those next in turn first
        self._num_known_changes = 0  # of the demand, since when all but the next ``_num_unseen`` runs were looked at
        self._num_unseen = 0
        self._untold: dict[
            str, bytes
        ] = {}  # prompts, packed, of requests that are held; told before any run, last first
        self._told: dict[str, None] = {}  # requests that are held, those that enter, and some that never did
        self._most_told = MIN_TOLD

    def __len__(self) -> int:
        """Runs that are known."""
        return len(self._runs)

    def hear(self, held: Iterable[str], prompt_of: Callable[[str], bytes | None]) -> None:
        """The executor holds these. Those that it was told nothing of (it had them when the scheduler began, or a plan
        was lost) are told next. ``prompt_of``: packed, by id; None where it is not known."""
        for request_id in held:
            if request_id not in self._told and (prompt := prompt_of(request_id)) is not None:
                self._untold[request_id] = prompt
                self._told[request_id] = None
        if len(self._told) > self._most_told:
            self._told = {request_id: None for request_id in self._told if self._is_held(request_id)}
            self._most_told = max(MIN_TOLD, 2 * len(self._told))

    def forget(self, ended: Iterable[str]) -> None:
        """The executor holds these no more."""
        for request_id in ended:
            self._told.pop(request_id, None)
            self._untold.pop(request_id, None)

    def tell(self, entering: Iterable[tuple[str, Path]]) -> ReaderCounts:
        """With a plan. ``entering``: those that it brings, by id, in its order."""
        self._demand.catch_up(MAX_CAUGHT_UP)
        number, self._num_words = self._num_words, self._num_words + 1
        return ReaderCounts(self._since_s, number, [self._enter(*each) for each in entering], self._changes())

    def _enter(self, request_id: str, path: Path) -> list[tuple[int, int]]:
        prompt, hashes = path
        runs, start = self._demand.runs(prompt, 0, len(hashes)), 0
        for end, num_readers in runs:
            packed = b"".join(hashes[start:end])
            self._keep(_Run(request_id, prompt, start, end, packed, num_readers))
            start = end
        self._told[request_id] = None
        return runs

    def _changes(self) -> list[tuple[bytes, int]]:
        changes: list[tuple[bytes, int]] = []
        num_blocks = 0
        if self._num_known_changes != self._demand.num_changes:
            self._num_known_changes, self._num_unseen = self._demand.num_changes, len(self._runs)
        num_untold = min(MAX_USUAL, len(self._untold))
        for _ in range(num_untold or min(MAX_LOOKED_UP, self._num_unseen, len(self._runs))):
            run = self._next_run()
            if not self._matters(run):
                continue
            told = self._look_up(run)
            changes += [(part.hashes, part.num_readers) for part in told]
            num_blocks += sum(part.end - part.start for part in told)
            if num_blocks >= MAX_CHANGED_BLOCKS:
                break
        return changes

    def _next_run(self) -> _Run:
        """There is one."""
        if self._untold:  # hashed not before its turn: there may be hundreds
            request_id, prompt = self._untold.popitem()
            hashes = self._hashes_of(request_id)
            return _Run(request_id, prompt, 0, len(hashes), b"".join(hashes), 0)
        self._num_unseen -= 1
        return self._runs.popitem(last=False)[1]

    def _matters(self, run: _Run) -> bool:
        if self._is_held(run.request_id):
            return True
        first = (run.hashes[:HASH_BYTES],)
        is_cached = self._cache.is_stale or self._cache.look_up(first, OFFLINE).num_blocks > 0
        return run.num_readers > 0 and is_cached

    def _look_up(self, run: _Run) -> list[_Run]:
        """Keep it as it is now: in parts, where others have come that leave its path half-way. Returns those whose
        number is to be told."""
        to_tell, start = [], run.start
        for end, num_readers in self._demand.runs(run.prompt, run.start, run.end):
            packed = run.hashes[(start - run.start) * HASH_BYTES : (end - run.start) * HASH_BYTES]
            known = self._runs.get(packed[-HASH_BYTES:], run)  # another that ends here may have been told otherwise
            is_told = known.num_readers == run.num_readers and not _is_off(run.num_readers, num_readers)
            count = run.num_readers if is_told else num_readers
            part = _Run(run.request_id, run.prompt, start, end, packed, count)
            self._keep(part)
            if not is_told:
                to_tell.append(part)
            start = end
        return to_tell

    def _keep(self, run: _Run) -> None:
        """Last in turn."""
        key = run.hashes[-HASH_BYTES:]
        if key:
            self._runs[key] = run
            self._runs.move_to_end(key)


def _is_off(told: int, now: int) -> bool:
    return (told == 0) != (now == 0) or OFF_BY * abs(told - now) > told
