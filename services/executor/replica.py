"""One model replica's state: requests, tokens and KV blocks, from one step to the next. Synchronous, no I/O."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from services.executor.engine import EngineSpec, Sequence, StepBatch, StepResult
from services.executor.sequence import LiveSequence
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.messages import (
    BatchShape,
    EndedRequest,
    FinishReason,
    GenerateRequest,
    PlanEntry,
    RequestState,
    StepPlan,
    TokenOutput,
)
from shared.scheduling.batch import Limits, Policy, Schedule, ScheduledRequest, why_never_held
from shared.scheduling.blocks import BlockPool
from shared.scheduling.online_order import OnlineOrder
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import reconcile, two_phase_schedule
from shared.scheduling.table import RequestTable
from shared.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

AddressedOutput = tuple[str, TokenOutput]  # the gateway that it is for (empty: none), and what it gained

MAX_ENGINE_FAILURES = 2  # a request that was in this many failed steps ends with an error


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that left, and why."""

    sequence: LiveSequence
    finish_reason: FinishReason
    error: str = ""


@dataclass(slots=True)
class Totals:
    """Counted since the start; see ExecutorCounters."""

    steps_offline: int = 0
    preemptions: int = 0
    offline_dropped: int = 0
    aborted: int = 0
    finished_online: int = 0
    finished_offline: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    online_tokens: int = 0
    offline_tokens: int = 0


class Replica:
    """Call in this order, step by step: ``schedule`` (or ``reconcile``), ``begin`` (or ``allocate``, where no engine
    needs the batch), the engine, ``finish`` (or ``fail``).

    As many steps as the engine has pipeline stages may begin before the oldest of them finishes; they finish in the
    order in which they began. A step in flight keeps its requests from other steps and their KV from others.
    ``submit`` and ``abort`` may come at any time; an abort of a request in flight takes effect when its step finishes.
    """

    def __init__(
        self,
        limits: Limits,
        spec: EngineSpec,
        tokenizer: Tokenizer | None,
        online_order: OnlineOrder | None = None,
    ) -> None:
        """``tokenizer``: finds stop strings; None where no request has any. ``online_order``: fcfs unless given."""
        self.limits = limits
        self.spec = spec
        self.table = RequestTable(online_order)
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self.totals = Totals()
        self._tokenizer = tokenizer
        self._sequences: dict[str, LiveSequence] = {}
        self._in_flight: deque[list[tuple[LiveSequence, int]]] = deque()  # steps between begin and finish, each
        # sequence with the tokens that it computes, oldest step first
        self._aborting: dict[str, None] = {}
        self._ended: list[Ended] = []  # since take_ended

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def submit(self, request: GenerateRequest) -> None:
        """Take a request; a known id is ignored. One that can never run here ends at once with an error."""
        if request.request_id in self._sequences:
            return
        sequence = LiveSequence.admit(request, self.spec, self._tokenizer)
        problem = why_never_held(sequence.request, self.limits, self.spec.max_model_len)
        if problem:
            self._ended.append(Ended(sequence, FinishReason.ERROR, problem))
            return
        reason = sequence.finished_before(self.spec)
        if reason is not None:
            self._ended.append(Ended(sequence, reason))
            return
        self._sequences[request.request_id] = sequence
        self.table.add(sequence.request)

    def abort(self, request_ids: Seq[str]) -> None:
        """Unknown ids are ignored: they have ended."""
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is None:
                continue
            if sequence.request.is_in_flight:
                self._aborting[request_id] = None
            else:
                self._end(sequence, FinishReason.ABORT)

    def request_ids_of_gateways(self) -> dict[str, list[str]]:
        """Who waits for tokens of which requests."""
        by_gateway: dict[str, list[str]] = {}
        for sequence in self._sequences.values():
            if sequence.gateway_id:
                by_gateway.setdefault(sequence.gateway_id, []).append(sequence.request_id)
        return by_gateway

    def schedule(self, plan: StepPlan | None, policy: Policy, model: LatencyModel) -> Schedule:
        """The next step: the plan, reconciled; or, without one, planned here over what is here."""
        if plan is None:
            num_free, num_offline = self._blocks()
            return two_phase_schedule(self.table, (), num_free, num_offline, self.limits, policy, model)
        for request in plan.admitted:
            self.submit(request)
        entries = [ScheduledRequest(e.request_id, e.kind, e.num_scheduled_tokens) for e in plan.entries]
        return self.reconcile(entries, plan.preempted, policy, model)

    def reconcile(
        self, entries: Seq[ScheduledRequest], preempted: Seq[str], policy: Policy, model: LatencyModel
    ) -> Schedule:
        """A plan's entries, fitted to what is here by now."""
        num_free, num_offline = self._blocks()
        return reconcile(entries, preempted, self.table, num_free, num_offline, self.limits, policy, model)

    def begin(self, schedule: Schedule, step: int) -> StepBatch:
        """``allocate``, and the batch that the engine is to run."""
        running = self.allocate(schedule)
        return StepBatch(step, [self._engine_sequence(sequence, tokens) for sequence, tokens in running])

    def allocate(self, schedule: Schedule) -> list[tuple[LiveSequence, int]]:
        """Give each entry its blocks; what runs, with the tokens that it computes. Where the counts were too hopeful
        (shared blocks free less than they count), offline requests lose their KV for online ones, and offline
        entries are dropped."""
        lost: dict[str, None] = {}
        for request_id in schedule.preempted:
            request = self.table.get(request_id)
            if request is not None and request.is_running and not request.is_in_flight:
                self._preempt(request, lost)
        running: list[tuple[LiveSequence, int]] = []
        for entry in schedule.entries:
            if entry.request_id in lost:
                continue
            sequence = self._sequences[entry.request_id]
            num_tokens = self._allocate(sequence, entry.num_scheduled_tokens, lost)
            if num_tokens == 0:
                self.totals.offline_dropped += entry.kind is Kind.OFFLINE
                continue
            sequence.request.num_in_flight_tokens = num_tokens
            running.append((sequence, num_tokens))
        self.totals.offline_dropped += schedule.num_dropped
        if running:
            self._in_flight.append(running)
            self.totals.steps_offline += running[-1][0].kind is Kind.OFFLINE  # entries are online first
        return running

    def finish(self, result: StepResult) -> list[AddressedOutput]:
        """Apply the oldest step's outcome; what online requests gained, in batch order. Ended ones are in
        ``take_ended``."""
        outputs: list[AddressedOutput] = []
        for sequence, num_tokens in self._in_flight.popleft():
            request = sequence.request
            request.num_in_flight_tokens = 0
            self._advance(sequence, num_tokens)
            token_id = result.sampled.get(request.request_id)
            if self._aborting and self._aborts(sequence):
                continue
            if token_id is None:
                continue
            reason = sequence.append(token_id, self.spec)
            if request.kind is Kind.ONLINE:
                self.table.online_order.generate(request)
                self.totals.online_tokens += 1
                if reason is None:
                    outputs.append((sequence.gateway_id, _output(sequence)))
            else:
                self.totals.offline_tokens += 1
            if reason is not None:
                self._end(sequence, reason)
        return outputs

    def fail(self, why: str) -> None:
        """The engine could not run the oldest step: its KV is void, so every request in it is computed anew, and one
        that was in too many failed steps ends with an error."""
        for sequence, _ in self._in_flight.popleft():
            sequence.request.num_in_flight_tokens = 0
            sequence.num_failures += 1
            if self._aborts(sequence):
                continue
            if sequence.num_failures >= MAX_ENGINE_FAILURES:
                self._end(sequence, FinishReason.ERROR, why)
            else:
                self._preempt(sequence.request, {})

    def take_ended(self) -> list[Ended]:
        """Who left since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def in_flight(self) -> list[list[PlanEntry]]:
        """The steps that run, oldest first."""
        return [
            [PlanEntry(sequence.request_id, sequence.kind, tokens) for sequence, tokens in step]
            for step in self._in_flight
        ]

    def states(self) -> list[RequestState]:
        """All that is held."""
        return [
            RequestState(
                request.request_id,
                request.kind,
                request.num_computed_tokens,
                request.num_tokens,
                request.num_blocks,
                request.max_total_tokens,
                request.client_id,
                request.was_admitted,
            )
            for request in self.table
        ]

    def _blocks(self) -> tuple[int, int]:
        """Those that nobody holds, and those that only offline requests outside any running step hold."""
        in_flight = self.table.num_blocks_in_flight(Kind.OFFLINE)
        return self.pool.num_free, max(0, self.pool.num_offline_only - in_flight)

    def _allocate(self, sequence: LiveSequence, num_tokens: int, lost: dict[str, None]) -> int:
        """Tokens that can be computed now: ``num_tokens``, less where the prefix cache leaves less; 0 for none."""
        request = sequence.request
        was_running = request.is_running
        if not was_running:
            request.num_computed_tokens = self.pool.start(request.request_id, request.kind, sequence.token_ids)
        num_tokens = min(num_tokens, request.num_remaining_tokens)
        if request.num_computed_tokens + num_tokens <= request.num_blocks * self.limits.block_size:
            return num_tokens  # most decodes: the last block has room
        while not self.pool.grow(request.request_id, request.num_computed_tokens + num_tokens):
            victim = self._offline_victim(lost) if request.kind is Kind.ONLINE else None
            if victim is None:
                if not was_running:
                    self.pool.free(request.request_id)
                    request.num_computed_tokens = 0
                return 0
            self._preempt(victim, lost)
        request.num_blocks = len(self.pool.table(request.request_id))
        if not was_running:
            self._count_start(sequence)
            self.table.start(request)
        return num_tokens

    def _count_start(self, sequence: LiveSequence) -> None:
        self.totals.cached_tokens += sequence.request.num_computed_tokens
        if not sequence.has_started:
            sequence.has_started = True
            sequence.num_cached_tokens = min(sequence.request.num_computed_tokens, sequence.num_prompt_tokens)

    def _offline_victim(self, lost: dict[str, None]) -> Request | None:
        for request in reversed(self.table.running(Kind.OFFLINE).values()):
            if request.request_id not in lost and not request.is_in_flight:
                return request
        return None

    def _preempt(self, request: Request, lost: dict[str, None]) -> None:
        self.pool.free(request.request_id)
        self.table.preempt(request)
        self.totals.preemptions += 1
        lost[request.request_id] = None

    def _aborts(self, sequence: LiveSequence) -> bool:
        """End it where that was asked for while it was in flight."""
        if sequence.request_id not in self._aborting:
            return False
        del self._aborting[sequence.request_id]
        self._end(sequence, FinishReason.ABORT)
        return True

    def _engine_sequence(self, sequence: LiveSequence, num_tokens: int) -> Sequence:
        request = sequence.request
        end = request.num_computed_tokens + num_tokens
        return Sequence(
            request.request_id,
            sequence.token_ids[request.num_computed_tokens : end],
            request.num_computed_tokens,
            self.pool.table(request.request_id),
            sequence.sampling,
            needs_sample=end == request.num_tokens,
        )

    def _advance(self, sequence: LiveSequence, num_tokens: int) -> None:
        request = sequence.request
        num_before = request.num_computed_tokens
        request.num_computed_tokens = num_after = num_before + num_tokens
        if num_before < sequence.num_prompt_tokens:
            self.totals.prompt_tokens += min(num_after, sequence.num_prompt_tokens) - num_before
        block_size = self.limits.block_size
        if num_after // block_size > num_before // block_size:
            self.pool.commit(request.request_id, sequence.token_ids, num_after)

    def _end(self, sequence: LiveSequence, reason: FinishReason, error: str = "") -> None:
        self.pool.free(sequence.request_id)
        self.table.remove(sequence.request_id)
        del self._sequences[sequence.request_id]
        if reason is FinishReason.ABORT:
            self.totals.aborted += 1
        elif sequence.kind is Kind.ONLINE:
            self.totals.finished_online += 1
        else:
            self.totals.finished_offline += 1
        self._ended.append(Ended(sequence, reason, error))


def _output(sequence: LiveSequence) -> TokenOutput:
    token_ids, sequence.unpublished = sequence.unpublished, []
    return TokenOutput(sequence.request_id, token_ids, None, sequence.num_cached_tokens)


def final_output(ended: Ended) -> TokenOutput:
    """The last message about a sequence: its unsent tokens and why it ended."""
    sequence = ended.sequence
    return TokenOutput(
        sequence.request_id, sequence.unpublished, ended.finish_reason, sequence.num_cached_tokens, ended.error
    )


def ended_request(ended: Ended) -> EndedRequest:
    """For the step message."""
    return EndedRequest(ended.sequence.request_id, ended.finish_reason)


def batch_shape(batch: StepBatch) -> BatchShape:
    """The features of a batch as it ran."""
    features = BatchFeatures()
    for sequence in batch.sequences:
        features.add_scheduled(len(sequence.token_ids), sequence.num_computed_tokens)
    return BatchShape.of(features)
