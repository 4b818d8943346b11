"""One model replica, from one step to the next: what runs over which blocks, and what comes of it. Synchronous."""

from collections import deque
from collections.abc import Callable, Container
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
from shared.replica.engine import TO_COME, Sequence, StepBatch, StepResult, TokenHistory
from shared.replica.handover import Handovers
from shared.replica.kv_allocation import Unwritten
from shared.replica.live_sequences import LiveSequences
from shared.replica.outputs import AddressedOutput, Ended, token_output
from shared.replica.returning import split_returning
from shared.replica.sequence import LiveSequence
from shared.scheduling.credit import OnlineShare
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, ONLINE, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer

MOST_INTERRUPTED = 8  # steps in a row
COUNTED_BY_ALLOCATE = ("steps_offline", "cached_tokens", "entrant_tokens_planned", "entrant_tokens_computed")


class _Step(msgspec.Struct, frozen=True):
    """Between begin and finish."""

    running: Running
    entries: list[ScheduledRequest]  # the same, as it is told
    copies: list[SlotOperations]
    share: OnlineShare
    planned_ms: float
    unwritten: Unwritten


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
        on_admitted: Callable[[LiveSequence], None] = lambda sequence: None,
    ) -> None:
        """``tokenizer``: finds stop strings; None where no request has any. ``strategy``: hygen unless given.
        ``now_ms``: the clock of the deadlines; ``waited_s``: since an arrival at a gateway (unix time);
        ``on_admitted``: is told of each that comes by ``submit`` or a plan, once it is known."""
        strategy = strategy or Strategy()
        self.limits = limits
        self.spec = spec
        self._live = live = LiveSequences(limits, spec, tokenizer, strategy, self._arrive, on_admitted)
        self.table, self.pool, self.totals = live.table, live.pool, live.totals
        self._reserve = strategy.make_reserve()
        self.handovers = Handovers(live, lambda: self.num_reserved_blocks)
        self._kv, self._foresight, self._readers = live.kv, live.foresight, live.readers
        self._slo = strategy.token_slo if strategy.uses_deadlines else None
        self._now_ms = now_ms
        self._waited_s = waited_s
        self._pace = Pace()
        self._model: LatencyModel | None = None  # that was asked last
        self._planned: dict[str, int] = {}  # tokens of offline requests in the plan of the coming step
        self._taken_in: StepPlan | None = None  # the last one whose requests came
        self._in_flight: deque[_Step] = deque()  # oldest first
        self.copies_ahead: list[SlotOperations] = []  # beside the steps in flight; whatever runs next has them too
        self._ahead: StepAhead | None = None  # the newest step in flight, before the other has ended
        self._can_look_ahead = live.foresight.is_possible and spec.takes_steps_ahead and not strategy.uses_deadlines

    @property
    def has_work(self) -> bool:
        return bool(self._live.by_id)

    def counters(self) -> ExecutorCounters:
        """The totals so far, to be told: without those of a step ahead, which may be taken back, so that none falls."""
        return replace(self.totals, **(self._ahead.counts if self._ahead is not None else {}))

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

    def take_in_late(self, plan: StepPlan, ended: Container[str] = ()) -> None:
        """Of a plan that came too late for its step: its requests wait for the next."""
        self._foresight.err()
        self.take_in(plan, ended)

    def take_in(self, plan: StepPlan, ended: Container[str] = ()) -> None:
        """What a plan brings, beside its batch, but for those that have ``ended``; nothing of one that was looked at
        before: who has left since is not to come again."""
        if plan is self._taken_in:
            return
        self._taken_in = plan
        for request in plan.admitted:
            if request.request_id not in ended:
                self._admit(request)
        if plan.readers is not None:
            self._readers.follow(plan.readers.since_s, plan.readers.number)
            for request, runs in zip(plan.admitted, plan.readers.entering, strict=False):  # where some are not taken
                if request.request_id in self._live.by_id:
                    self._readers.enter(request.request_id, self._live.block_hashes(request.request_id), runs)
            self._readers.change(plan.readers.changes)

    def abort(self, request_ids: Seq[str]) -> None:
        """Unknown ids are ignored: they have ended."""
        self._foresight.err()
        for request_id in request_ids:
            sequence = self._live.by_id.get(request_id)
            if sequence is None:
                self.handovers.abort(request_id)
            elif sequence.request.is_in_flight or (self._ahead is not None and self._runs(sequence)):
                self._live.aborting[request_id] = None
            else:
                self._live.end(sequence, FinishReason.ABORT)

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
        for sequence in self._live.by_id.values():
            if sequence.gateway_id:
                by_gateway.setdefault(sequence.gateway_id, []).append(sequence.request_id)
        return by_gateway

    def schedule(self, plan: StepPlan | None, policy: Policy, model: LatencyModel) -> Schedule:
        """The next step: the plan, reconciled; or, without one, planned here over what is here."""
        if model is not self._model:
            self._model, self._pace = model, self._pace.of_new_model()
        if plan is None:
            return packing_named(policy.packing).schedule(self.step_state(policy, model), no_queue)
        self.take_in(plan)
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
            self._live.cache,
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
        running = self._allocate_apart(schedule) if self._live.suspects else self._allocate(schedule)
        self._planned = {}
        if running:
            own, copies = self._kv.take_operations(), self.copies_ahead
            copies = [*copies, own] if own else copies
            entries = _as_entries(running, schedule)
            unwritten = self._kv.take_unwritten()
            self._in_flight.append(_Step(running, entries, copies, schedule.share, schedule.latency_ms, unwritten))
            ahead = self._kv.restore(returning)
            self.copies_ahead = [ahead] if ahead else []
            num_lost = self.table.count(schedule.preempted, OFFLINE)
            self._pace = self._pace.after(schedule, self.limits.max_num_seqs, num_lost)
            self.totals.steps_offline += running[-1][0].kind is OFFLINE  # entries are online first
            self._observe_online_blocks()
        return running

    def look_ahead(self, plan: StepPlan | None, policy: Policy, model: LatencyModel) -> Running:
        """``schedule`` and ``allocate`` for the step after the one in flight, over what is expected to come of that.
        Nothing where the outcome has to be awaited: where a token depends on it, or where the step would take KV from
        somebody, or leave out something of its plan."""
        if not self._can_look_ahead or self._live.suspects or self._ahead is not None or len(self._in_flight) != 1:
            return []
        if self.handovers.is_giving:
            return []
        leaving = {**self._live.left, **self._live.aborting, **self._live.voided}
        expected = ExpectedOutcome.of(self._in_flight[0].running, leaving)
        if expected is None or packing_named(policy.packing).uses_time:
            return []
        expected.assume()
        schedule = self.schedule(plan, policy, model)
        held = HeldNow(self.table, self._live.left, self._live.cache, self.pool.num_free, self.limits.block_size)
        if not held.can_run_beside(schedule):
            expected.undo()
            return []
        sequences = [self._live.by_id[entry.request_id] for entry in schedule.entries]
        entering = [sequence for sequence in sequences if not sequence.request.is_running]
        pace, counts = self._pace, {name: getattr(self.totals, name) for name in COUNTED_BY_ALLOCATE}
        running = self.allocate(schedule)
        self._ahead = StepAhead(expected, entering, schedule, pace, counts)
        self._live.ahead = {sequence.request_id for sequence, _ in running}  # membership only
        return running

    def take_back(self) -> None:
        """The step that began ahead does not run: all is as before it, but that those who go on keep the blocks that
        they got for it."""
        ahead, self._ahead, self._live.ahead = self._ahead, None, ()
        assert ahead is not None, "no step began ahead"
        self._foresight.err()
        step = self._in_flight.pop()
        for sequence, _ in step.running:
            sequence.request.num_in_flight_tokens = 0
        self._withdraw(step)
        ahead.expected.undo()
        for sequence in ahead.entering:
            self._kv.restart(sequence.request)
        for sequence, _ in step.running:
            if not sequence.request.is_in_flight:
                self._live.aborts(sequence)
        self._pace = ahead.pace
        for name, count in ahead.counts.items():
            setattr(self.totals, name, count)

    def finish(self, result: StepResult, turn_ms: float | None = None) -> list[AddressedOutput]:
        """Apply the oldest step's outcome; what each gained whose tokens somebody waits for, in batch order. Ended ones
        are in ``take_ended``. ``turn_ms``: from the end of the step before it, what was done between them included;
        else the step's own time."""
        outputs: list[AddressedOutput] = []
        step, now_ms = self._in_flight.popleft(), self._now_ms()
        turn_ms = result.step_ms if turn_ms is None else turn_ms
        ahead = self._ahead
        if ahead is not None:
            ahead.expected.undo()
            self._pace = ahead.pace
        self._pace = self._pace.measured(result.step_ms, turn_ms, step.share, step.planned_ms)
        self.totals.online_s += step.share.num_requests * turn_ms / 1e3
        drift = self._pace.credit.drift_of(step.share)
        self.totals.online_alone_s += step.share.num_requests * drift * step.share.alone_ms / 1e3
        self.totals.copy_wait_s += result.copy_wait_ms / 1e3
        advance, spec, order = self._kv.advance, self.spec, self.table.online_order
        sampled, all_logprobs, failed = result.sampled, result.logprobs, result.failed
        live, left, voided, aborting = self._live, self._live.left, self._live.voided, self._live.aborting
        num_tokens_gained, online = 0, list[Request]()
        if failed:
            self._void(step, failed)
        self._kv.wrote(step.unwritten)
        for sequence, num_tokens in step.running:
            request = sequence.request
            request.num_in_flight_tokens = 0
            if (left and live.leaves(sequence)) or (voided and live.recomputes(sequence)):
                continue
            if failed and request.request_id in failed:
                self._foresight.err()
                live.fail(sequence, failed[request.request_id], is_to_blame=True)
                continue
            if sequence.scoring is not None and not live.takes_scores(sequence, result.prompt_scores):
                continue
            advance(sequence, num_tokens)
            if aborting and live.aborts(sequence):
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
                    live.end_choice(sequence, reason)
                elif request.kind is ONLINE or sequence.gateway_id:
                    outputs.append((sequence.gateway_id, token_output(sequence)))
                num_tokens_gained += 1
                if sequence.num_failures:
                    sequence.num_failures = 0
                    live.suspects.clear(request.request_id)
            elif request.num_remaining_tokens == 0:
                if sequence.sampling.max_tokens == 0:
                    live.end_prompt(sequence, result.embeddings.get(request.request_id))
                else:
                    self._foresight.err()
        if self._slo is not None:
            self._slo.advance_all(online, now_ms)
        self.totals.online_tokens += len(online)
        self.totals.offline_tokens += num_tokens_gained - len(online)
        if ahead is not None:
            self._go_on_with(ahead)
        self._observe_online_blocks()
        return outputs

    def retract(self) -> None:
        """The newest step in flight was interrupted: it has no outcome, and its requests have the KV that they had
        before it."""
        assert self._ahead is None, "a step stands on its outcome"
        self._foresight.err()
        self.totals.steps_interrupted += 1
        step = self._in_flight.pop()
        self._pace = self._pace.interrupted(step.planned_ms)
        self._withdraw(step)
        readers = {sequence.request_id for sequence in step.unwritten.readers}  # membership only
        for sequence, _ in step.running:
            request = sequence.request
            request.num_in_flight_tokens = 0
            if self._live.leaves(sequence) or self._live.recomputes(sequence) or self._live.aborts(sequence):
                continue
            if request.request_id in readers:
                self._kv.restart(request)
            else:
                self.pool.unlock(request.request_id, request.num_computed_tokens)

    def fail(self, why: str) -> None:
        """The engine could not run the oldest step: its KV is void, so every request in it is computed anew, as is
        whoever holds slots that it was to copy. Whose doing it was is found by running them apart: one that fails alone
        ends with an error."""
        assert self._ahead is None, "a step stands on its outcome"
        failed = self._in_flight.popleft()
        self._foresight.err()
        self._void(failed, {sequence.request_id for sequence, _ in failed.running})
        self._kv.settle(failed.unwritten)
        sequences = [sequence for sequence, _ in failed.running if not self._live.leaves(sequence)]
        self._live.suspects.add([sequence.request_id for sequence in sequences])
        for sequence in sequences:
            sequence.request.num_in_flight_tokens = 0
            self._live.voided.pop(sequence.request_id, None)
            self._live.fail(sequence, why, is_to_blame=len(failed.running) == 1)
        later = [copies for step in self._in_flight for copies in step.copies]
        for request in self._kv.void(failed.copies, [*later, *self.copies_ahead]):
            if request.is_in_flight:  # whoever reads what it writes holds those slots too
                self._kv.withdraw(self._live.by_id[request.request_id])
                self._live.voided[request.request_id] = None
            else:
                self._kv.lose(request)

    def take_ended(self) -> list[Ended]:
        """Who left since the last call."""
        return self._live.take_ended()

    def in_flight(self) -> list[list[ScheduledRequest]]:
        """The steps that run, oldest first."""
        if not self._live.left:
            return [step.entries for step in self._in_flight]
        return [
            [
                entry
                for entry, (sequence, _) in zip(step.entries, step.running, strict=True)
                if self._live.left.get(entry.request_id) is not sequence
            ]
            for step in self._in_flight
        ]

    def tell(self, all_of_them: bool = True) -> list[Request]:
        """What is held, as it is now, for a scheduler; unless it is to be told ``all_of_them``, without the online
        requests that have never run and that it was told of before."""
        self._kv.update_paused()
        self._foresight.tell(self._now_ms() + (self._in_flight[-1].planned_ms if self._in_flight else 0.0))
        fresh, self._live.untold = self._live.untold, {}
        return self.table.copies(None if all_of_them else fresh)

    def _admit(self, request: GenerateRequest, hashes: Seq[bytes] = ()) -> None:
        if not self.handovers.keeps(request):
            self._live.admit(request, hashes)

    def _arrive(self, request: Request) -> None:
        if request.kind is ONLINE and self._slo is not None:
            now_ms = self._now_ms()
            self._slo.arrive(request, now_ms, now_ms - self._waited_s(request.arrival_s) * 1e3)

    def _observe_online_blocks(self) -> None:
        if self._reserve.leaves_blocks:
            self._reserve.observe(self._now_ms() / 1e3, self.pool.num_held_online)

    def _withdraw(self, step: _Step) -> None:
        """It does not write what it was to."""
        for sequence, _ in step.running:
            self._kv.withdraw(sequence)
        self._kv.settle(step.unwritten)

    def _void(self, step: _Step, failed: Container[str]) -> None:
        """What the oldest step was to write for these ids is not to be found. Whoever reads it, in that step or in
        those in flight behind it, is computed anew, and nothing of theirs is to be found either."""
        failing = [sequence for sequence, _ in step.running if sequence.request_id in failed]
        readers = self._kv.withdraw_all(failing, [each.unwritten for each in (step, *self._in_flight)])
        self._live.voided.update(dict.fromkeys(sequence.request_id for sequence in readers))

    def _go_on_with(self, ahead: StepAhead) -> None:
        """The step before it has ended: it is as any other."""
        self._ahead, self._live.ahead = None, ()
        self._pace = self._pace.after(ahead.schedule, self.limits.max_num_seqs)
        for sequence, num_tokens in self._in_flight[0].running:
            if self._live.left.get(sequence.request_id) is not sequence:
                sequence.request.num_in_flight_tokens = num_tokens

    def _runs(self, sequence: LiveSequence) -> bool:
        """It is in a step in flight."""
        return any(each is sequence for step in self._in_flight for each, _ in step.running)

    def _allocate(self, schedule: Schedule) -> Running:
        return self._kv.allocate(schedule, self._live.by_id, self._planned)

    def _allocate_apart(self, schedule: Schedule) -> Running:
        """Suspects apart from the others, unless those hold the blocks that they need."""
        self._foresight.err()
        return self._allocate(self._live.suspects.group_of(schedule)) or self._allocate(replace(schedule, preempted=[]))

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


def _as_entries(running: Running, schedule: Schedule) -> list[ScheduledRequest]:
    """The schedule's own, where all of it runs, with all the tokens that it has there: more of them never run."""
    num_scheduled = sum([entry.num_scheduled_tokens for entry in schedule.entries])
    if num_scheduled == sum([num_tokens for _, num_tokens in running]):
        return schedule.entries
    return [ScheduledRequest(sequence.request_id, sequence.kind, num_tokens) for sequence, num_tokens in running]
