"""A batch under construction: what it holds so far, and what is left of each budget."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel, added_ms
from shared.latency.revisable import RevisableFeatures
from shared.scheduling.kv.request_cache import NO_CACHE, Found, RequestCache, StepCache
from shared.scheduling.limits import Limits
from shared.scheduling.request import Request
from shared.scheduling.schedule import ScheduledRequest


class BatchBuilder:
    """Adds requests while budgets last.

    ``bounded`` requests must fit the latency budget; unbounded ones (the online phase) only use it up, so that
    without offline work the schedule is plain chunked-prefill continuous batching. A request that enters costs what
    the prefix cache, or an entry before it, does not have of it: in tokens, in time and in blocks.
    """

    def __init__(
        self,
        limits: Limits,
        model: LatencyModel,
        latency_budget_ms: float,
        num_blocks: int,
        cache: RequestCache = NO_CACHE,
        lets_one_in: bool = False,
    ) -> None:
        """``lets_one_in``: the first bounded request is added though it exceeds the budget, by a decode or a block."""
        self.entries: list[ScheduledRequest] = []
        self.scheduled: set[str] = set()  # membership only, never iterated
        self.features = RevisableFeatures()
        self.num_blocks_left = num_blocks
        self.num_tokens_left = self._max_num_tokens = limits.max_num_batched_tokens
        self._num_seqs_left = limits.max_num_seqs
        self._block_size = limits.block_size
        self.latency_budget_ms = latency_budget_ms
        self._swap_ms_per_slot = limits.swap_ms_per_slot
        self._swap_ms = 0.0  # of what comes back from the host: t_swap of BROS, beside which the batch executes
        self._is_bounded = latency_budget_ms < math.inf
        self._lets_one_in = lets_one_in
        self._model = model
        self._cache = StepCache(cache, limits.block_size)
        self._found: dict[str, Found] = {}  # of the entries that enter, as they do
        self._chunks: dict[str, Request] = {}  # bounded ones; some may have been taken out again
        self._latency_ms: float | None = 0.0  # None after unbounded additions, which do not ask what they cost

    @property
    def latency_ms(self) -> float:
        """Predicted for all that was added."""
        if self._latency_ms is None:
            self._latency_ms = self._model.predict_ms(self.features)
        return self._latency_ms

    @property
    def spare_ms(self) -> float:
        """What is left of the latency budget; negative where the batch takes longer."""
        return self.latency_budget_ms - self.latency_ms

    def bound(self, latency_budget_ms: float, lets_one_in: bool = False) -> None:
        """What the whole step may take where bounded requests are added from here on. ``lets_one_in``: from here on,
        if not before."""
        self.latency_budget_ms = latency_budget_ms
        self._is_bounded = latency_budget_ms < math.inf
        self._lets_one_in = self._lets_one_in or lets_one_in

    @property
    def has_room(self) -> bool:
        """At least one more token of one more request."""
        return self._num_seqs_left > 0 and self.num_tokens_left > 0

    def lacks_blocks(self, request: Request) -> bool:
        """Not even one more token of this request fits the free blocks."""
        return self._num_new_blocks(request, 1) > self.num_blocks_left

    def fits_whole(self, request: Request, reserve_blocks: int = 0) -> bool:
        """All known tokens of a waiting or paused request fit the free blocks, ``reserve_blocks`` of them left: one
        that cannot be completed would only hold blocks that others need."""
        return self.num_whole_blocks(request) + reserve_blocks <= self.num_blocks_left

    def num_whole_blocks(self, request: Request) -> int:
        """Free blocks that all its known tokens take."""
        return self._num_new_blocks(request, request.num_tokens - self.num_computed(request))

    def try_decode(self, request: Request, bounded: bool) -> bool:
        """HyGen Alg. 1 lines 7-11: T(batch with r) - T(batch) against what is left of the budget."""
        num_blocks = request.num_new_blocks(1, self._block_size)
        if num_blocks > self.num_blocks_left or self._num_seqs_left <= 0 or self.num_tokens_left <= 0:
            return False
        context_len = request.num_computed_tokens + 1
        latency_ms = None
        if bounded and self._is_bounded:
            latency_ms = self.latency_ms + self._model.decode_cost_ms(self.features, context_len)
            if latency_ms > self.latency_budget_ms and not self._lets_one_in:
                return False
        self.features.add_decode(context_len)
        self._add(request, 1, num_blocks, latency_ms)
        return True

    def has_time_for(self, request: Request) -> bool:
        """For one more token of a bounded request that decodes."""
        if self._lets_one_in or not self._is_bounded:
            return True
        return self.latency_ms + self.decode_cost_ms(request) <= self.latency_budget_ms

    def add_decodes(self, requests: Sequence[Request]) -> int:
        """HyGen Alg. 1 lines 7-11 for requests that no budget bounds and of which nobody is paused: how many were
        added, up to the first for which there is no room."""
        added, num_blocks = self._leading_with_room(requests)
        if not added:
            return 0
        self.features.add_decodes([each.num_computed_tokens + 1 for each in added])
        self._latency_ms = None
        self._note_decodes(added, self.num_blocks_left - num_blocks)
        return len(added)

    def add_bounded_decodes(self, requests: Sequence[Request]) -> int:
        """``try_decode`` for bounded ones of which nobody is paused: how many were added, up to the first that does not
        fit."""
        if not self._is_bounded:
            return self.add_decodes(requests)
        decode_cost_ms, features, budget_ms = self._model.decode_cost_ms, self.features, self.latency_budget_ms
        block_size, num_blocks_left, latency_ms = self._block_size, self.num_blocks_left, self.latency_ms
        added: list[Request] = []
        for request in requests[: max(0, min(self._num_seqs_left, self.num_tokens_left))]:
            num_computed = request.num_computed_tokens
            num_blocks = 0 if num_computed % block_size else request.num_new_blocks(1, block_size)
            after_ms = latency_ms + decode_cost_ms(features, num_computed + 1)
            if num_blocks > num_blocks_left or (after_ms > budget_ms and not self._lets_one_in):
                break
            features.add_decode(num_computed + 1)
            latency_ms, num_blocks_left, self._lets_one_in = after_ms, num_blocks_left - num_blocks, False
            added.append(request)
        if added:
            self._latency_ms = latency_ms
            self._note_decodes(added, num_blocks_left)
        return len(added)

    def add_fitting_decodes(self, requests: Sequence[Request]) -> None:
        """As ``add_decodes``, but those behind one that lacks a block are added too, where they have one."""
        num_seen = 0
        while num_seen < len(requests) and self.has_room:
            num_seen += self.add_decodes(requests[num_seen:]) + 1

    def left_out(self, requests: list[Request]) -> list[Request]:
        """Those of them that are not in the batch."""
        scheduled = self.scheduled
        return [each for each in requests if each.request_id not in scheduled] if scheduled else requests

    def add_decodes_within(self, requests: Sequence[Request]) -> int:
        """OOCO Alg. 2 lines 12 and 13: the largest prefix of bounded decodes that the latency budget allows, as far as
        there is room for it; how many were added."""
        num_added = self.add_decodes(requests[: self.num_decodes_within(requests, self.latency_budget_ms)])
        self._lets_one_in = self._lets_one_in and num_added == 0
        return num_added

    def num_decodes_within(self, requests: Sequence[Request], latency_budget_ms: float) -> int:
        """How many of these decodes, from the first on, the step may have if it takes so long: by bisection, each
        prefix a sum."""
        if latency_budget_ms == math.inf or not requests:
            return len(requests)
        context_lens = [request.num_computed_tokens + 1 for request in requests]
        kv_tokens = list(accumulate(context_lens, initial=self.features.decode_kv_tokens))
        longest = list(accumulate(context_lens, max, initial=self.features.longest_decode))
        s_p, n_p, _, n_d, pairs = self.features.sums

        def latency_ms(count: int) -> float:
            return self._model.predict_ms(BatchFeatures(s_p, n_p, kv_tokens[count], n_d + count, pairs, longest[count]))

        return bisect_right(range(1, len(requests) + 1), latency_budget_ms, key=latency_ms)

    def try_prefill(self, request: Request, bounded: bool, at_most: int | None = None) -> bool:
        """HyGen Alg. 1 lines 15-20: the longest chunk that fits latency (if bounded), tokens and blocks."""
        if not self.has_room:
            return False
        num_tokens, num_computed = self._max_prefill(request, bounded, at_most), self.num_computed(request)
        if num_tokens <= 0:
            return False
        latency_ms = None
        if bounded and self._is_bounded:
            latency_ms = self.latency_ms + self.chunk_cost_ms(num_tokens, num_computed)
        self.features.add_scheduled(num_tokens, num_computed)
        self._add(request, num_tokens, self._num_new_blocks(request, num_tokens), latency_ms)
        if not request.num_blocks:
            self._found[request.request_id] = self._cache.found(request)
        self._cache.compute(request, num_computed, num_tokens)
        if bounded:
            self._chunks[request.request_id] = request
        return True

    def try_add(self, request: Request, bounded: bool, at_most: int | None = None) -> bool:
        """A decode or a prefill chunk, whichever the request needs next. Of bounded requests that wait for KV to come
        back from the host, only the first may take that longer than the budget."""
        swap_ms = self._swap_ms + request.num_missing_slots * self._swap_ms_per_slot
        if bounded and 0 < self._swap_ms < swap_ms > self.latency_budget_ms:
            return False
        if request.is_decode:
            is_added = self.try_decode(request, bounded)
        else:
            is_added = self.try_prefill(request, bounded, at_most)
        if is_added:
            self._swap_ms = swap_ms
        return is_added

    def take_out(self, index: int, request: Request) -> int:
        """Undo what added ``entries[index]``, which is this request's; the tokens that it had."""
        entry = self.entries.pop(index)
        num_tokens, num_computed = entry.num_scheduled_tokens, self.num_computed(request)
        self.features.remove_scheduled(num_tokens, num_computed)
        self._cache.leave_out(request, num_computed, num_tokens)
        self._latency_ms = None
        self._swap_ms -= request.num_missing_slots * self._swap_ms_per_slot
        self.num_tokens_left += num_tokens
        self.num_blocks_left += self._num_new_blocks(request, num_tokens)
        self._num_seqs_left += 1
        self.scheduled.discard(entry.request_id)
        self._found.pop(entry.request_id, None)
        return num_tokens

    def put_back(self, index: int, request: Request, num_tokens: int) -> None:
        """Undo a ``take_out``; what was added since must be taken out again."""
        was_added = self.try_add(request, bounded=False, at_most=num_tokens)
        assert was_added, f"{request.request_id} was in the batch before"
        self.entries.insert(index, self.entries.pop())

    def round_down(self, multiple: int) -> int:
        """Cut bounded chunks, the last first, until the step's tokens are a multiple, as the tiles of a GEMM are
        (BlendServe sections 4 and 5.2). Returns how many entries are gone by that.

        The paper rounds a size that is wished for up and down in turns. What is here already is all that fits, so that
        it goes to the nearest: what fills more than half of a multiple stays. So do chunks that would lose more than
        half of their tokens: they would be held up for little.
        """
        chunks = [entry for entry in self.entries if entry.request_id in self._chunks]
        surplus = (self._max_num_tokens - self.num_tokens_left) % multiple
        if 2 * surplus > min(multiple, sum(chunk.num_scheduled_tokens for chunk in chunks)):
            return 0
        num_gone = 0
        while surplus:
            chunk = chunks.pop()
            request, index = self._chunks[chunk.request_id], self.entries.index(chunk)
            num_tokens = self.take_out(index, request)
            num_cut = min(surplus, num_tokens)
            if num_cut < num_tokens:
                self.put_back(index, request, num_tokens - num_cut)
            num_gone += num_cut == num_tokens
            surplus -= num_cut
        return num_gone

    def decode_cost_ms(self, request: Request) -> float:
        """What its next token adds to the step."""
        return self._model.decode_cost_ms(self.features, request.num_computed_tokens + 1)

    def chunk_cost_ms(self, num_tokens: int, num_computed: int) -> float:
        """What a chunk adds to the step. The rest of a prompt of which the cache has all but a token counts as a
        decode."""
        return added_ms(self._model, self.features, num_tokens, num_computed)

    def longest_chunk(self, request: Request, latency_budget_ms: float) -> int:
        """Tokens of a prompt that can be added if the step may take so long; 0 for none."""
        return self._within(request, self._room(request), latency_budget_ms) if self.has_room else 0

    def num_taken_blocks(self, request: Request, num_tokens: int) -> int:
        """Free blocks that it fills with something else, for so many more tokens. It may take others besides: those in
        which the cache has its own beginning."""
        num_blocks = self._num_new_blocks(request, num_tokens)
        return num_blocks if request.num_blocks else num_blocks - self.num_reused_blocks(request)

    def num_reused_blocks(self, request: Request) -> int:
        """Free blocks in which the cache has the beginning of a request that waits."""
        if request.num_blocks:
            return 0
        found = self._look_up(request)
        return found.num_tokens // self._block_size - found.num_held_blocks

    def num_computed(self, request: Request) -> int:
        """Tokens whose KV is there once it runs."""
        return request.num_computed_tokens if request.num_blocks else self._look_up(request).num_tokens

    def _num_new_blocks(self, request: Request, num_tokens: int) -> int:
        """Free blocks that ``num_tokens`` more tokens take."""
        if request.num_blocks:
            return request.num_new_blocks(num_tokens, self._block_size)
        found = self._look_up(request)
        return max(0, -(-(found.num_tokens + num_tokens) // self._block_size) - found.num_held_blocks)

    def _leading_with_room(self, decodes: Sequence[Request]) -> tuple[Sequence[Request], int]:
        """Up to the first that has no room, and the blocks that they take. A decode takes one where its last is full:
        few do."""
        most, block_size = max(0, min(self._num_seqs_left, self.num_tokens_left)), self._block_size
        leading = decodes[:most] if most < len(decodes) else decodes
        takers = [each for each in leading if each.num_computed_tokens % block_size == 0]
        num_blocks = 0
        for each in takers:
            num_taken = each.num_new_blocks(1, block_size)
            if num_blocks + num_taken > self.num_blocks_left:
                return leading[: leading.index(each)], num_blocks
            num_blocks += num_taken
        return leading, num_blocks

    def _note_decodes(self, added: Sequence[Request], num_blocks_left: int) -> None:
        """Their features are there."""
        self.entries += [ScheduledRequest(each.request_id, each.kind, 1) for each in added]
        self.scheduled.update([each.request_id for each in added])
        self.num_blocks_left = num_blocks_left
        self.num_tokens_left -= len(added)
        self._num_seqs_left -= len(added)

    def _look_up(self, request: Request) -> Found:
        found = self._found.get(request.request_id)
        return self._cache.found(request) if found is None else found

    def _max_prefill(self, request: Request, bounded: bool, at_most: int | None) -> int:
        """get_max_prefill(t, c, m, r)."""
        limit = self._room(request) if at_most is None else min(self._room(request), at_most)
        if not (bounded and self._is_bounded) or limit <= 0:
            return limit
        num_tokens = self._within(request, limit, self.latency_budget_ms)
        return max(num_tokens, min(limit, self._block_size) if self._lets_one_in else 0)

    def _room(self, request: Request) -> int:
        """Tokens of its prompt for which there are tokens and blocks."""
        num_computed = self.num_computed(request)
        num_own_blocks = request.num_own_blocks if request.num_blocks else self._look_up(request).num_held_blocks
        room = (num_own_blocks + self.num_blocks_left) * self._block_size - num_computed
        return min(request.num_tokens - num_computed, self.num_tokens_left, room)

    def _within(self, request: Request, limit: int, latency_budget_ms: float) -> int:
        """As many of these as fit the time."""
        if limit <= 0 or latency_budget_ms == math.inf:
            return max(limit, 0)
        num_computed, left_ms = self.num_computed(request), latency_budget_ms - self.latency_ms
        num_tokens = self._model.max_prefill_tokens(self.features, num_computed, left_ms, limit)
        fits = num_tokens != 1 or self.chunk_cost_ms(1, num_computed) <= left_ms  # one token counts as a decode
        return num_tokens if fits else 0

    def _add(self, request: Request, num_tokens: int, num_blocks: int, latency_ms: float | None) -> None:
        self._latency_ms = latency_ms
        self._lets_one_in = self._lets_one_in and latency_ms is None  # that of bounded requests is known
        self.num_tokens_left -= num_tokens
        self.num_blocks_left -= num_blocks
        self._num_seqs_left -= 1
        self.scheduled.add(request.request_id)
        self.entries.append(ScheduledRequest(request.request_id, request.kind, num_tokens))
