"""Requests that move between replicas with their KV (OOCO sections 3.2 and 3.4.3): what the giver holds back, and what
the taker makes room for. Who reads the KV, and who tells whom, is not known here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from shared.protocol.executors import EngineSpec
from shared.protocol.handover import Carried
from shared.protocol.prompt_scores import record_bytes
from shared.protocol.requests import GenerateRequest
from shared.replica.live_sequences import LiveSequences
from shared.replica.sequence import LiveSequence
from shared.scheduling.request import HELD, Kind, Request


@dataclass(frozen=True, slots=True)
class Reserved:
    """Room for a request that comes. ``pairs``: (block of the giver, own block), whose KV is to be read; those that the
    prefix cache has are not among them."""

    sequence: LiveSequence
    num_computed_tokens: int
    pairs: list[tuple[int, int]]


class Handovers:
    """Of one replica. As giver: ``collect`` after each step, before the next is packed, holds what is to move from
    there on; each held request is either ``gave`` or ``release`` in the end. As taker: ``reserve``, then ``take`` or
    ``drop``. Only a request that decodes moves, while no step has it: one with a prompt of which a token is left to
    compute does not, before it has its first token. One that is submitted to the taker as well, by somebody who thinks
    that its giver is gone, waits for what comes of its reservation: see ``keeps``.
    """

    def __init__(self, live: LiveSequences, num_reserved_blocks: Callable[[], int]) -> None:
        """``num_reserved_blocks``: that offline requests leave free for online ones when they come."""
        self.pushes: Collection[Kind] = ()  # kinds that move as soon as they decode
        self._live = live
        self._num_reserved_blocks = num_reserved_blocks
        self._table, self._pool, self._kv = live.table, live.pool, live.kv
        self._reserved: dict[str, Reserved] = {}
        self._submitted: dict[str, GenerateRequest] = {}  # of those, here as well

    @property
    def is_giving(self) -> bool:
        """Something is to leave, so that no step is begun ahead with it."""
        return bool(self.pushes or self._live.asked)

    # The giver

    def ask(self, request_ids: Iterable[str]) -> None:
        """These are to move, as soon as they can."""
        self._live.asked |= dict.fromkeys(request_ids)

    def decoding(self, kind: Kind, taker: EngineSpec | None = None) -> list[tuple[str, int]]:
        """Ids and tokens of the requests that could move now, or once their step has ended, and are not to already;
        where the ``taker`` is known those alone that can run there."""
        free = (each for each in self._decoding(kind) if not each.is_held and each.request_id not in self._live.asked)
        return [
            (each.request_id, each.num_tokens)
            for each in free
            if taker is None or can_run(taker, each.num_tokens, self._live.by_id[each.request_id].sampling.adapter)
        ]

    def collect(self) -> list[Carried]:
        """Who moves from here on: they are held, with their KV, until it is said what became of it. Those asked for
        that are in a step are held after it; those that have lost their KV meanwhile are not asked for any more."""
        if not self.is_giving:
            return []
        for kind in self.pushes:
            self.ask(each.request_id for each in self._decoding(kind) if each.request_id not in self._live.stay)
        held = []
        for request_id in list(self._live.asked):
            sequence = self._live.by_id.get(request_id)
            if sequence is not None and sequence.request.is_in_flight and not sequence.request.is_held:
                continue
            del self._live.asked[request_id]
            if sequence is not None and self._may_move(sequence):
                sequence.request.num_in_flight_tokens = HELD
                held.append(_carried(sequence, self._pool.table(request_id)))
        if held:
            self._live.foresight.err()
        return held

    def release(self, request_id: str) -> None:
        """Nobody has taken it: it goes on here, and is not pushed again until ``push_again``. Nothing where it is not
        held."""
        sequence = self._take_held(request_id)
        if sequence is not None and not self._live.aborts(sequence):
            self._live.stay[request_id] = None

    def push_again(self) -> None:
        """Those whom nobody took, too: who could not take them may by now."""
        self._live.stay = {}

    def gave(self, request_id: str) -> None:
        """Another replica has it: it is forgotten here. Nothing where it is not held."""
        sequence = self._take_held(request_id)
        if sequence is not None:
            self._live.totals.handed_over += 1
            self._live.forget(sequence)

    # The taker

    def reserve(self, carried: Carried) -> Reserved | str:
        """Blocks for a request that comes, and which KV to read into them; or why there are none, in words. An online
        request takes the room of offline ones, which lose their KV; an offline one leaves the reserve, as one that
        enters does."""
        request_id = carried.request.request_id
        if request_id in self._live.by_id or request_id in self._reserved:
            return "it is here already"
        sequence = LiveSequence.admit(carried.request, self._live.spec, self._live.tokenizer)
        problem = self._live.why_never(sequence, trusts_output=True)
        problem = problem or self._why_no_decode(sequence, carried) or _why_other_scores(carried)
        if problem:
            return problem
        if carried.prompt_scores is not None:
            sequence.bring_scores(carried.prompt_scores)
        self._live.foresight.err()
        num_reserved = self._num_reserved_blocks() if sequence.kind is Kind.OFFLINE else 0
        num_cached = self._kv.reserve(sequence, carried.num_computed_tokens, num_reserved)
        if num_cached is None:
            kept = f" of which {num_reserved} are kept for online requests," if num_reserved else ""
            return f"{self._pool.num_free} blocks are free,{kept} and it has {len(carried.block_ids)}"
        first, own = num_cached // self._live.limits.block_size, self._pool.table(request_id)
        pairs = list(zip(carried.block_ids[first:], own[first:], strict=False))
        sequence.num_cached_tokens, sequence.has_started = carried.num_cached_tokens, True
        sequence.unpublished = list(carried.unpublished)
        sequence.logprobs = list(carried.logprobs)
        sequence.ended_choices = list(carried.ended_choices)
        reserved = self._reserved[request_id] = Reserved(sequence, carried.num_computed_tokens, pairs)
        return reserved

    def take(self, request_id: str) -> LiveSequence:
        """Its KV is there: it is this replica's from now on, and decodes. Raises KeyError where no room was
        reserved."""
        reserved = self._reserved.pop(request_id)
        self._submitted.pop(request_id, None)
        self._live.foresight.err()
        self._live.add(reserved.sequence)
        self._kv.take(reserved.sequence, reserved.num_computed_tokens)
        self._live.totals.taken_over += 1
        return reserved.sequence

    def drop(self, request_id: str) -> bool:
        """It does not come; nothing where no room was reserved for it. Whether it has begun here instead, since it was
        submitted meanwhile."""
        reserved = self._reserved.pop(request_id, None)
        if reserved is not None:
            self._live.foresight.err()
            self._kv.drop(reserved.sequence)
        request = self._submitted.pop(request_id, None)
        if request is not None:
            self._live.admit(request)
        return request is not None

    def keeps(self, request: GenerateRequest) -> bool:
        """Room is reserved for it: where that is dropped it is admitted."""
        if request.request_id not in self._reserved:
            return False
        self._submitted[request.request_id] = request
        return True

    def abort(self, request_id: str) -> None:
        """It is not admitted any more."""
        self._submitted.pop(request_id, None)

    def _take_held(self, request_id: str) -> LiveSequence | None:
        """In no step and held no more; None where it was not held."""
        sequence = self._live.by_id.get(request_id)
        if sequence is None or not sequence.request.is_held:
            return None
        self._live.foresight.err()
        sequence.request.num_in_flight_tokens = 0
        return sequence

    def _may_move(self, sequence: LiveSequence) -> bool:
        """One that a step failed with is found guilty, or not, where that was."""
        request = sequence.request
        is_steady = not (request.is_held or request.is_paused or sequence.num_failures)
        return is_steady and _has_begun(sequence)

    def _why_no_decode(self, sequence: LiveSequence, carried: Carried) -> str:
        """Why it cannot decode with what it brings; empty where it can."""
        if not carried.request.output_token_ids or sequence.finished_before(self._live.spec) is not None:
            return "it does not decode: only requests that do move"
        num_computed, num_blocks = carried.num_computed_tokens, len(carried.block_ids)
        if num_computed != sequence.request.num_tokens - 1 or num_blocks * self._live.limits.block_size < num_computed:
            return f"{num_blocks} blocks with KV of {num_computed} tokens are not those of all its tokens but the last"
        return ""

    def _decoding(self, kind: Kind) -> Iterator[Request]:
        """All that do, held ones among them."""
        for request in self._table.running(kind).values():
            if _has_begun(self._live.by_id[request.request_id]):
                yield request


def can_run(taker: EngineSpec, num_tokens: int, adapter: str) -> bool:
    """A request of so many tokens can go on there: with its adapter, and within the context."""
    return num_tokens < taker.max_model_len and not taker.why_without(adapter)


def _why_other_scores(carried: Carried) -> str:
    """Why what it brings are not the scores of its prompt; empty where they are, or it brings none."""
    scores, num_top = carried.prompt_scores, carried.request.sampling.prompt_logprobs
    if scores is None:
        return ""
    if num_top is None:
        return "it has scores of its prompt that nobody asked for"
    num_records = max(0, len(carried.request.prompt_token_ids) - 1)
    return "" if len(scores) == num_records * record_bytes(num_top) else "its prompt has other scores than it brings"


def _has_begun(sequence: LiveSequence) -> bool:
    """It decodes: the choice that is generated has a token."""
    return sequence.request.is_decode and len(sequence.token_ids) > sequence.num_prompt_tokens


def _carried(sequence: LiveSequence, block_ids: list[int]) -> Carried:
    request, scoring, sampling = sequence.request, sequence.scoring, sequence.sampling
    scores = None if scoring is None else scoring.untold
    if scores is None:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    return Carried(
        GenerateRequest(
            request.request_id,
            request.kind,
            sequence.token_ids[: sequence.num_prompt_tokens],
            sampling,
            request.arrival_s,
            sequence.gateway_id,
            sequence.output_token_ids,
            is_resumed=True,
            client_id=request.client_id,
            client_weight=request.client_weight,
            http_request_id=sequence.http_request_id,
            traceparent=sequence.traceparent,
        ),
        request.num_computed_tokens,
        list(block_ids),
        sequence.num_cached_tokens,
        list(sequence.unpublished),
        list(sequence.logprobs),
        list(sequence.ended_choices),
        scores,
    )
