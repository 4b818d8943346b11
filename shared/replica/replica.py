"""One model replica's state: requests, tokens and KV blocks, from one step to the next. Synchronous, no I/O."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

import msgspec
from msgspec.structs import replace

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec, ExecutorCounters
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.protocol.steps import StepPlan
from shared.replica.ahead import ExpectedOutcome, HeldNow, Running, StepAhead
from shared.replica.block_readers import BlockReaders
from shared.replica.engine import TO_COME, Sequence, StepBatch, StepResult, TokenHistory
from shared.replica.foresight import Foresight
from shared.replica.handover import Handovers, Hooks
from shared.replica.kv_allocation import KVAllocation
from shared.replica.outputs import AddressedOutput, Ended, token_output
from shared.replica.prompt_scores import BlockScores
from shared.replica.returning import split_returning
from shared.replica.sequence import LiveSequence
from shared.replica.suspects import Suspects
from shared.scheduling.credit import OnlineShare
from shared.scheduling.kv.request_cache import HashedRequests
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.limits import Limits, why_never_held
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, ONLINE, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.scheduling.table import RequestTable
from shared.text.tokenizer import Tokenizer

SCORES_LOST = "the prefix cache had KV of the prompt whose scores were not kept"
NO_EMBEDDING = "the engine gave no embedding"
MOST_INTERRUPTED = 8  # steps in a row
MAX_ENGINE_FAILURES = 2  # in a row, the last of them its own doing: then a request ends with an error
COUNTED_BY_ALLOCATE = ("steps_offline", "cached_tokens", "entrant_tokens_planned", "entrant_tokens_computed")


class _Step(msgspec.Struct, frozen=True):
    """Between begin and finish."""

    running: Running
    entries: list[ScheduledRequest]  # the same, as it is told
    copies: list[SlotOperations]
    share: OnlineShare
    planned_ms: float


class Replica:
    """Call in this order, step by step: ``schedule`` (or ``reconcile``), ``begin`` (or ``allocate``, where no engine
    needs the batch), the engine, ``finish`` (or ``fail``).

    As many steps as the engine has pipeline stages may begin before the oldest of them finishes; they finish in the
    order in which they began. A step in flight keeps its requests from other steps and their KV from others.
    ``submit`` and ``abort`` may come at any time; an abort of a request in flight takes effect when its step finishes.

    Where the engine takes steps ahead, one may begin by ``look_ahead`` while the only other runs. From that one's
    ``finish`` on it is as any step in flight; before it, and before ``fail`` and ``retract``, ``take_back`` undoes it.
    """

    def __init__(
        self,
        limits: Limits,
        spec: EngineSpec,
        tokenizer: Tokenizer | None,
        strategy: Strategy | None = None,
        now_ms: Callable[[], float] = lambda: 0.0,
        waited_s: Callable[[float], float] = lambda arrival_s: 0.0,
    ) -> None:
        """``tokenizer``: finds stop strings; None where no request has any. ``strategy``: hygen unless given.
        ``now_ms``: the clock of the deadlines; ``waited_s``: since an arrival at a gateway (unix time)."""
        strategy = strategy or Strategy()
        self.limits = limits
        self.spec = spec
        self.table = RequestTable(strategy.make_online_order())
        self.pool = strategy.make_pool(limits, spec.num_host_slots)
        self.totals = ExecutorCounters()
        self._readers = BlockReaders(self.pool)
        self._block_scores = BlockScores(self.pool)
        self._reserve = strategy.make_reserve()
        self._kv = KVAllocation(limits, self.table, self.pool, strategy.sharing, self.totals)
        self._slo = strategy.token_slo if strategy.uses_deadlines else None
        self._now_ms = now_ms
        self._waited_s = waited_s
        self._pace = Pace()
        self._tokenizer = tokenizer
        self._sequences: dict[str, LiveSequence] = {}
        self._cache = HashedRequests(self.pool, limits.block_size, self._block_hashes)
        self._planned: dict[str, int] = {}  # tokens of offline requests in the plan of the coming step
        self._in_flight: deque[_Step] = deque()  # oldest first
        self.copies_ahead: list[SlotOperations] = []  # beside the steps in flight; whatever runs next has them too
        self._aborting: dict[str, None] = {}
        self._voided: dict[str, None] = {}  # in flight on KV that another step's failure made worthless
        self._suspects = Suspects()
        self._ahead: StepAhead | None = None  # the newest step in flight, before the other has ended
        self._is_found_unwritten = False  # blocks can be found that the oldest step in flight has yet to write
        self._left: dict[str, LiveSequence] = {}  # ended while the step in flight had them: it writes to their blocks
        self._ended: list[Ended] = []  # since take_ended
        self._untold: dict[str, None] = {}  # online requests that came since the scheduler was told
        can_foresee = spec.pipeline_depth == 1 and not strategy.sharing.pauses
        self._foresight = Foresight(self.table, self.pool, self._cache, can_foresee)
        self._can_look_ahead = can_foresee and spec.takes_steps_ahead and not strategy.uses_deadlines
        hooks = Hooks(
            self._foresight.err,
            self._add,
            self._admit,
            self._forget,
            self._aborts,
            lambda: not self._is_found_unwritten,
        )
        self.handovers = Handovers(
            limits, spec, tokenizer, self.table, self.pool, self._kv, self._sequences, self.totals, hooks
        )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def pace(self) -> Pace:
        """Now, for the next step."""
        return self._pace.at(self._now_ms())

    def submit(self, request: GenerateRequest, hashes: Seq[bytes] = ()) -> None:
        """Take a request; a known id is ignored. One that can never run here ends at once with an error. ``hashes``: of
        its full blocks, where they are known."""
        if request.kind is ONLINE:
            self._foresight.arrive(request.request_id)
        else:
            self._foresight.err()
        self._admit(request, hashes)

    def take_in_late(self, plan: StepPlan) -> None:
        """Of a plan that came too late for its step: its requests wait for the next."""
        self._foresight.err()
        self._take_in(plan)

    def abort(self, request_ids: Seq[str]) -> None:
        """Unknown ids are ignored: they have ended."""
        self._foresight.err()
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is None:
                self.handovers.abort(request_id)
                continue
            if sequence.request.is_in_flight or (self._ahead is not None and self._runs(sequence)):
                self._aborting[request_id] = None
            else:
                self._end(sequence, FinishReason.ABORT)

    def online_work(self) -> BatchFeatures:
        """What the online requests have it do: as prefill what is not computed, as decode who generates."""
        features = BatchFeatures()
        for held in (self.table.running(ONLINE), self.table.waiting(ONLINE)):
            for request in held.values():
                features.add_scheduled(request.num_remaining_tokens, request.num_computed_tokens)
        return features

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
            return packing_named(policy.packing).schedule(self.step_state(policy, model), no_queue)
        self._take_in(plan)
        self._planned = {entry.request_id: entry.num_scheduled_tokens for entry in plan.entries}
        has_reserve = self.num_reserved_blocks > 0
        if self._foresight.came_true(plan, policy, model, self._pace, self._now_ms(), has_reserve):
            gives_way = packing_named(policy.packing).gives_way(self.table, model)
            return Schedule(plan.entries, [], plan.latency_ms, share=plan.share, gives_way=gives_way)
        return self.reconcile(plan.entries, plan.preempted, policy, model)

    def reconcile(
        self, entries: Seq[ScheduledRequest], preempted: Seq[str], policy: Policy, model: LatencyModel
    ) -> Schedule:
        """A plan's entries, fitted to what is here by now; without those that have it as of another kind."""
        held = ((entry, self.table.get(entry.request_id)) for entry in entries)
        entries = [entry for entry, request in held if request is None or request.kind is entry.kind]
        return packing_named(policy.packing).reconcile(self.step_state(policy, model), entries, preempted)

    def step_state(self, policy: Policy, model: LatencyModel) -> StepState:
        """What the next step is packed from."""
        num_free, num_offline = self._kv.num_blocks()
        num_wanted = self.pool.eviction.num_wanted
        return StepState(
            self.table,
            num_free,
            num_offline,
            self.limits,
            policy,
            model,
            self.pace,
            self._cache,
            num_wanted,
            self.num_reserved_blocks,
        )

    @property
    def lacks_readers(self) -> bool:
        """Something of what plans tell of readers was lost."""
        return self._readers.has_gap

    @property
    def num_reserved_blocks(self) -> int:
        """That offline requests leave free for online ones when they enter."""
        return self._reserve.num_blocks(self.pool.num_held_online) if self._reserve.leaves_blocks else 0

    def begin(self, schedule: Schedule, step: int) -> StepBatch:
        """``allocate``, and the batch that the engine is to run."""
        running = self.allocate(schedule)
        return self.batch(running, step) if running else StepBatch(step, [])

    def batch(self, running: Running, step: int) -> StepBatch:
        """Of the newest step in flight, for an engine."""
        sequences = [self._engine_sequence(*each) for each in running]
        follows = None if self._ahead is None else step - 1
        return StepBatch(step, sequences, self.copies, self.is_interruptible, follows)

    @property
    def is_interruptible(self) -> bool:
        """The newest step in flight has no online request, and the engine can stop it; those before it were not all
        stopped, since offline work is to come to an end sometime."""
        if not self.spec.is_interruptible or self._pace.num_interrupted >= MOST_INTERRUPTED or not self._in_flight:
            return False
        is_one_of_many = len(self._in_flight) > 1 and self._ahead is None
        return not is_one_of_many and self._in_flight[-1].running[0][0].kind is OFFLINE  # online first

    @property
    def copies(self) -> list[SlotOperations]:
        """Of slots, in this order, before the newest step's forward pass."""
        return self._in_flight[-1].copies

    def allocate(self, schedule: Schedule) -> Running:
        """Give each entry its blocks; what runs, with the tokens that it computes. Entries whose blocks are short are
        dropped."""
        schedule, returning = split_returning(schedule, self.table, self.limits)
        running = self._allocate_apart(schedule) if self._suspects else self._allocate(schedule)
        self._planned = {}
        if running:
            own, copies = self._kv.take_operations(), self.copies_ahead
            copies = [*copies, own] if own else copies
            entries = _as_entries(running, schedule)
            self._in_flight.append(_Step(running, entries, copies, schedule.share, schedule.latency_ms))
            ahead = self._kv.restore(returning)
            self.copies_ahead = [ahead] if ahead else []
            self._pace = self._pace.after(schedule, self.limits.max_num_seqs)
            self.totals.steps_offline += running[-1][0].kind is OFFLINE  # entries are online first
            self._observe_online_blocks()
        return running

    def look_ahead(self, plan: StepPlan | None, policy: Policy, model: LatencyModel) -> Running:
        """``schedule`` and ``allocate`` for the step after the one in flight, over what is expected to come of that.
        Nothing where the outcome has to be awaited: where a token depends on it, or where the step would take KV from
        somebody, or leave out something of its plan."""
        if not self._can_look_ahead or self._suspects or self._ahead is not None or len(self._in_flight) != 1:
            return []
        if self.handovers.is_giving:
            return []
        leaving = {**self._left, **self._aborting, **self._voided}
        expected = ExpectedOutcome.of(self._in_flight[0].running, leaving)
        if expected is None or packing_named(policy.packing).uses_time:
            return []
        expected.assume(self._kv)
        self._is_found_unwritten = True
        schedule = self.schedule(plan, policy, model)
        held = HeldNow(self.table, self._left, self._cache, self.pool.num_free, self.limits.block_size)
        if not held.can_run_beside(schedule):
            expected.undo()
            return []
        sequences = [self._sequences[entry.request_id] for entry in schedule.entries]
        entering = [sequence for sequence in sequences if not sequence.request.is_running]
        pace, counts = self._pace, {name: getattr(self.totals, name) for name in COUNTED_BY_ALLOCATE}
        running = self.allocate(schedule)
        num_tokens = {sequence.request_id: count for sequence, count in running}
        self._ahead = StepAhead(expected, num_tokens, entering, schedule, pace, counts)
        return running

    def take_back(self) -> None:
        """The step that began ahead does not run: all is as before it, but that those who go on keep the blocks that
        they got for it."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None, "no step began ahead"
        self._foresight.err()
        step = self._in_flight.pop()
        for sequence, _ in step.running:
            sequence.request.num_in_flight_tokens = 0
        ahead.expected.undo()
        for sequence in ahead.entering:
            self._kv.restart(sequence.request)
        for sequence, _ in step.running:
            if not sequence.request.is_in_flight:
                self._aborts(sequence)
        self._pace = ahead.pace
        for name, count in ahead.counts.items():
            setattr(self.totals, name, count)

    def finish(self, result: StepResult, turn_ms: float | None = None) -> list[AddressedOutput]:
        """Apply the oldest step's outcome; what each gained whose tokens somebody waits for, in batch order. Ended ones
        are in ``take_ended``. ``turn_ms``: from the end of the step before it, what was done between them included;
        else the step's own time."""
        outputs: list[AddressedOutput] = []
        step, now_ms = self._in_flight.popleft(), self._now_ms()
        self._is_found_unwritten = False
        turn_ms = result.step_ms if turn_ms is None else turn_ms
        ahead = self._ahead
        if ahead is not None:
            ahead.expected.undo()
            self._pace = ahead.pace
        self._pace = self._pace.measured(result.step_ms, turn_ms, step.share, step.planned_ms)
        self.totals.online_s += step.share.num_requests * turn_ms / 1e3
        self.totals.online_alone_s += step.share.num_requests * self._pace.credit.drift * step.share.alone_ms / 1e3
        self.totals.copy_wait_s += result.copy_wait_ms / 1e3
        advance, spec, order = self._kv.advance, self.spec, self.table.online_order
        sampled, all_logprobs, failed = result.sampled, result.logprobs, result.failed
        left, voided, aborting = self._left, self._voided, self._aborting
        num_tokens_gained, online = 0, list[Request]()
        for sequence, num_tokens in step.running:
            request = sequence.request
            request.num_in_flight_tokens = 0
            if (left and self._leaves(sequence)) or (voided and self._recomputes(sequence)):
                continue
            if failed and request.request_id in failed:
                self._foresight.err()
                self._fail(sequence, failed[request.request_id], is_to_blame=True)
                continue
            if sequence.scoring is not None and not self._takes_scores(sequence, result.prompt_scores):
                continue
            advance(sequence, num_tokens)
            if aborting and self._aborts(sequence):
                continue
            token_id = sampled.get(request.request_id)
            if token_id is not None:
                logprobs = all_logprobs.get(request.request_id) if all_logprobs else None
                reason = sequence.append(token_id, spec, logprobs)
                if request.kind is ONLINE:
                    online.append(request)
                    if order.counts_output:
                        order.generate(request)
                if reason is not None:
                    self._end_choice(sequence, reason)
                elif request.kind is ONLINE or sequence.gateway_id:
                    outputs.append((sequence.gateway_id, token_output(sequence)))
                num_tokens_gained += 1
                if sequence.num_failures:
                    sequence.num_failures = 0
                    self._suspects.clear(request.request_id)
            elif request.num_remaining_tokens == 0:
                if sequence.sampling.max_tokens == 0:
                    self._end_prompt(sequence, result.embeddings.get(request.request_id))
                else:
                    self._foresight.err()
        if self._slo is not None:
            self._slo.advance_all(online, now_ms)
        self.totals.online_tokens += len(online)
        self.totals.offline_tokens += num_tokens_gained - len(online)
        if ahead is not None:
            self._go_on_with(ahead, bool(result.failed))
        self._observe_online_blocks()
        return outputs

    def retract(self) -> None:
        """The newest step in flight was interrupted: it has no outcome, and its requests have the KV that they had
        before it."""
        assert self._ahead is None, "a step stands on its outcome"
        self._foresight.err()
        self.totals.steps_interrupted += 1
        step = self._in_flight.pop()
        self._is_found_unwritten = False
        self._pace = self._pace.interrupted(step.planned_ms)
        for sequence, _ in step.running:
            request = sequence.request
            request.num_in_flight_tokens = 0
            if self._leaves(sequence):
                continue
            self.pool.withdraw(request.request_id, request.num_computed_tokens)
            if not (self._recomputes(sequence) or self._aborts(sequence)):
                self.pool.unlock(request.request_id, request.num_computed_tokens)

    def fail(self, why: str) -> None:
        """The engine could not run the oldest step: its KV is void, so every request in it is computed anew, as is
        whoever holds slots that it was to copy. Whose doing it was is found by running them apart: one that fails alone
        ends with an error."""
        assert self._ahead is None, "a step stands on its outcome"
        failed = self._in_flight.popleft()
        self._is_found_unwritten = False
        self._foresight.err()
        sequences = [sequence for sequence, _ in failed.running if not self._leaves(sequence)]
        self._suspects.add([sequence.request_id for sequence in sequences])
        for sequence in sequences:
            sequence.request.num_in_flight_tokens = 0
            self._voided.pop(sequence.request_id, None)
            self._fail(sequence, why, is_to_blame=len(failed.running) == 1)
        later = [copies for step in self._in_flight for copies in step.copies]
        for request in self._kv.void(failed.copies, [*later, *self.copies_ahead]):
            if request.is_in_flight:
                self._voided[request.request_id] = None
            else:
                self._kv.lose(request)

    def take_ended(self) -> list[Ended]:
        """Who left since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def in_flight(self) -> list[list[ScheduledRequest]]:
        """The steps that run, oldest first."""
        if not self._left:
            return [step.entries for step in self._in_flight]
        return [
            [
                entry
                for entry, (sequence, _) in zip(step.entries, step.running, strict=True)
                if self._left.get(entry.request_id) is not sequence
            ]
            for step in self._in_flight
        ]

    def tell(self, all_of_them: bool = True) -> list[Request]:
        """What is held, as it is now, for a scheduler; unless it is to be told ``all_of_them``, without the online
        requests that have never run and that it was told of before."""
        self._kv.update_paused()
        self._foresight.tell(self._now_ms() + (self._in_flight[-1].planned_ms if self._in_flight else 0.0))
        fresh, self._untold = self._untold, {}
        return self.table.copies(None if all_of_them else fresh)

    def _take_in(self, plan: StepPlan) -> None:
        """What a plan brings, beside its batch."""
        for request in plan.admitted:
            self._admit(request)
        if plan.readers is not None:
            self._readers.follow(plan.readers.since_s, plan.readers.number)
            for request, runs in zip(plan.admitted, plan.readers.entering, strict=False):  # where some are not taken
                if request.request_id in self._sequences:
                    self._readers.enter(request.request_id, self._block_hashes(request.request_id), runs)
            self._readers.change(plan.readers.changes)

    def _observe_online_blocks(self) -> None:
        if self._reserve.leaves_blocks:
            self._reserve.observe(self._now_ms() / 1e3, self.pool.num_held_online)

    def _admit(self, request: GenerateRequest, hashes: Seq[bytes] = ()) -> None:
        if request.request_id in self._sequences or self.handovers.keeps(request):
            return
        sequence = LiveSequence.admit(request, self.spec, self._tokenizer, hashes)
        never_held = why_never_held(sequence.request, self.limits, self.spec.max_model_len)
        problem = never_held or sequence.why_never_run(self.spec)
        if problem:
            self._ended.append(Ended(sequence, FinishReason.ERROR, problem))
            return
        reason = sequence.finished_before(self.spec)
        if reason is not None:
            self._ended.append(Ended(sequence, reason))
            return
        if sequence.kind is ONLINE:
            self._untold[request.request_id] = None
        self._add(sequence)

    def _add(self, sequence: LiveSequence) -> None:
        request = sequence.request
        if request.kind is ONLINE and self._slo is not None:
            now_ms = self._now_ms()
            self._slo.arrive(request, now_ms, now_ms - self._waited_s(request.arrival_s) * 1e3)
        self._sequences[request.request_id] = sequence
        self.table.add(request)

    def _end_choice(self, sequence: LiveSequence, reason: FinishReason) -> None:
        """And the request with it, where it is its last."""
        if reason is not FinishReason.LENGTH or sequence.request.num_tokens < sequence.request.max_total_tokens:
            self._foresight.err()
        else:
            self._foresight.end(sequence.request)
        if sequence.begin_next_choice(reason, self._tokenizer):
            self._foresight.err()
            self._kv.restart(sequence.request)
        else:
            self._end(sequence, reason)

    def _end_prompt(self, sequence: LiveSequence, embedding: bytes | None) -> None:
        """It is computed, and nothing is to be generated."""
        sequence.embedding = embedding
        if embedding is None and sequence.sampling.embedding is not None:
            self._foresight.err()
            self._end(sequence, FinishReason.ERROR, NO_EMBEDDING)
        else:
            self._end_choice(sequence, FinishReason.LENGTH)

    def _fail(self, sequence: LiveSequence, why: str, is_to_blame: bool) -> None:
        """A step gave it nothing: it is computed anew, or has failed too often."""
        sequence.num_failures += 1
        self.pool.withdraw(sequence.request_id, sequence.request.num_computed_tokens)
        if self._aborts(sequence):
            return
        if is_to_blame and sequence.num_failures >= MAX_ENGINE_FAILURES:
            self._end(sequence, FinishReason.ERROR, why, may_be_retried=True)
        elif self._is_ahead(sequence):
            self._voided[sequence.request_id] = None
        else:
            self._kv.lose(sequence.request)

    def _takes_scores(self, sequence: LiveSequence, scores: dict[str, bytes]) -> bool:
        """Of the part of its prompt that a step has computed, before that counts as computed."""
        start, request_id = sequence.request.num_computed_tokens, sequence.request_id
        if not sequence.shares_scores or start >= sequence.num_prompt_tokens:
            return True
        assert sequence.scoring is not None
        hashes = sequence.block_hashes(self.limits.block_size)
        if self._block_scores.add(sequence.scoring, hashes, start, scores.get(request_id, b"")):
            return True
        self._foresight.err()
        self._fail(sequence, SCORES_LOST, is_to_blame=True)
        return False

    def _go_on_with(self, ahead: StepAhead, has_failed: bool) -> None:
        """The step before it has ended: it is as any other. ``has_failed``: some who were in that one; those who
        entered may have found what these did not write."""
        self._ahead = None
        if has_failed:
            found = (sequence for sequence in ahead.entering if sequence.request.num_computed_tokens)
            self._voided |= {sequence.request_id: None for sequence in found}
        self._pace = self._pace.after(ahead.schedule, self.limits.max_num_seqs)
        for sequence, num_tokens in self._in_flight[0].running:
            if self._left.get(sequence.request_id) is not sequence:
                sequence.request.num_in_flight_tokens = num_tokens

    def _runs(self, sequence: LiveSequence) -> bool:
        """It is in a step in flight."""
        return any(each is sequence for step in self._in_flight for each, _ in step.running)

    def _is_ahead(self, sequence: LiveSequence) -> bool:
        """It is in the step that began before its last one had ended."""
        return self._ahead is not None and sequence.request_id in self._ahead.num_tokens

    def _leaves(self, sequence: LiveSequence) -> bool:
        """Free its blocks where it had ended before the step that has just run with it."""
        if self._left.get(sequence.request_id) is not sequence:
            return False
        del self._left[sequence.request_id]
        self._foresight.err()
        self.pool.free(sequence.request_id)
        return True

    def _allocate(self, schedule: Schedule) -> Running:
        return self._kv.allocate(schedule, self._sequences, self._planned)

    def _allocate_apart(self, schedule: Schedule) -> Running:
        """Suspects apart from the others, unless those hold the blocks that they need."""
        self._foresight.err()
        return self._allocate(self._suspects.group_of(schedule)) or self._allocate(replace(schedule, preempted=[]))

    def _block_hashes(self, request_id: str) -> list[bytes]:
        return self._sequences[request_id].block_hashes(self.limits.block_size)

    def _recomputes(self, sequence: LiveSequence) -> bool:
        """Take its KV where it was made worthless while it was in flight."""
        if sequence.request_id not in self._voided:
            return False
        del self._voided[sequence.request_id]
        self._foresight.err()
        if not self._aborts(sequence):
            self._kv.lose(sequence.request)
        return True

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
        needs_sample = end == request.num_tokens and sequence.sampling.max_tokens > 0
        needs_embedding = end == request.num_tokens and sequence.sampling.embedding is not None
        needs_history = needs_embedding or (needs_sample and sequence.adjusts_logits)
        token_ids = sequence.token_ids[request.num_computed_tokens : end]
        if len(token_ids) < num_tokens:
            token_ids.append(TO_COME)
        return Sequence(
            request.request_id,
            token_ids,
            request.num_computed_tokens,
            self.pool.table(request.request_id),
            sequence.sampling,
            needs_sample,
            fills_right=self.pool.fills_right(request.kind),
            history=TokenHistory(sequence.token_ids, sequence.num_prompt_tokens) if needs_history else None,
            scored_ids=() if sequence.scoring is None else sequence.scored_ids(request.num_computed_tokens, end),
            needs_embedding=needs_embedding,
        )

    def _end(self, sequence: LiveSequence, reason: FinishReason, error: str = "", may_be_retried: bool = False) -> None:
        self._forget(sequence, has_read=reason is not FinishReason.ABORT and not may_be_retried)
        if reason is FinishReason.ABORT:
            self.totals.aborted += 1
        elif sequence.kind is ONLINE:
            self.totals.finished_online += 1
        else:
            self.totals.finished_offline += 1
        self._ended.append(Ended(sequence, reason, error, may_be_retried))

    def _forget(self, sequence: LiveSequence, has_read: bool = True) -> None:
        """Its blocks are free once no step writes to them. ``has_read``: what it was to read of the prefix cache."""
        request_id = sequence.request_id
        if self._is_ahead(sequence):
            self._left[request_id] = sequence
        elif request_id not in self._left:
            self.pool.free(request_id)
        self.table.remove(request_id)
        del self._sequences[request_id]
        self._readers.leave(request_id, has_read)
        self._suspects.forget(request_id)
        self._aborting.pop(request_id, None)
        self.handovers.forget(request_id)


def _as_entries(running: Running, schedule: Schedule) -> list[ScheduledRequest]:
    """The schedule's own, where all of it runs, with all the tokens that it has there: more of them never run."""
    num_scheduled = sum([entry.num_scheduled_tokens for entry in schedule.entries])
    if num_scheduled == sum([num_tokens for _, num_tokens in running]):
        return schedule.entries
    return [ScheduledRequest(sequence.request_id, sequence.kind, num_tokens) for sequence, num_tokens in running]
