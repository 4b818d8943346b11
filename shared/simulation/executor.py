"""One executor in virtual time."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from shared.clock import waited_s
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.handover import Carried
from shared.protocol.requests import GenerateRequest
from shared.protocol.steps import StepPlan, StepStarted
from shared.replica.ahead import Running
from shared.replica.engine import StepResult
from shared.replica.outputs import AddressedOutput, Ended
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.replica.wanted import wanted_by
from shared.scheduling.placement.pulling import Preference
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.simulation.copies import CopyTimeline
from shared.simulation.events import Events
from shared.simulation.setup import EPOCH, ExecutorSetup
from shared.simulation.stages import INTERRUPTED_AFTER, Stages

FIRST_OUTPUT_ID = 1 << 24  # beyond every vocabulary, so that no output looks like a prompt
NUM_OUTPUT_IDS = 1 << 24


class Progress(msgspec.Struct, frozen=True):
    """What came of an executor at ``end_s``: who gained a token with others to come, and who left. ``start_s``: since
    when its engine had nothing else to do but the step that ended; ``end_s`` where none has."""

    executor_id: str
    start_s: float
    end_s: float
    outputs: list[AddressedOutput]
    ended: list[Ended]


class _Launched(msgspec.Struct, frozen=True, eq=False):
    start_s: float
    end_s: float
    result: StepResult
    is_interruptible: bool = False
    is_interrupted: bool = False


class VirtualExecutor:
    """The live executor's replica and step planner around an engine of which only the time is known, and that lengths
    are: no answer ends early."""

    def __init__(
        self,
        executor_id: str,
        setup: ExecutorSetup,
        role: Role,
        events: Events,
        say: Callable[[StepStarted], None],
        tell: Callable[[Progress], None],
        give: Callable[[Carried], None],
        pull: Callable[[Preference], None],
    ) -> None:
        """``role``: what it acts as; ``say``: to its scheduler; ``tell``: to whoever waits for tokens and results;
        ``give``: hears of each request that is held for another executor; ``pull``: of such as this one would have."""
        self.info = setup.info(executor_id)
        self.setup = setup
        self.longest_plan_ms = 0.0  # of any batch that was planned; under a longer budget all would be the same
        self.replica = Replica(
            setup.limits, setup.spec, None, setup.strategy, lambda: events.now_s * 1e3, partial(waited_s, events)
        )
        self.role = role
        if role is Role.RELAXED:
            self.replica.handovers.pushes = setup.strategy.pushed_kinds
        self._tuning = setup.policy(role), setup.planner
        self._depth = setup.spec.pipeline_depth
        self._planner = StepPlanner(self.replica, executor_id, EPOCH, self._depth)
        self._stages = Stages(self._depth)
        self._copies = CopyTimeline(setup.spec.swap_ms_per_slot)
        self._noise = random.Random(f"{setup.seed}:noise:{executor_id}")
        self._events = events
        self._say = say
        self._tell = tell
        self._give = give
        self._pull = pull
        self._pulls = role is Role.STRICT and setup.strategy.pulls
        self._in_flight: deque[_Launched] = deque()  # oldest first
        self._busy_until_s = 0.0
        self._is_woken = False

    def tuning(self) -> tuple[Policy, LatencyModel]:
        """As budgets and models of the live system: those that hold now."""
        return self._tuning

    def announce(self) -> None:
        """It is there, and waits for work."""
        self._say(self._planner.idle_message())

    def submit(self, request: GenerateRequest, hashes: Sequence[bytes]) -> None:
        """An online request arrives; ``hashes``: of its full blocks, which its scheduler has made."""
        self.replica.submit(request, hashes)
        if self._in_flight and self._in_flight[0].is_interruptible and request.kind is Kind.ONLINE:
            self._interrupt()
        self._wake()

    def abort(self, request_ids: list[str]) -> None:
        """Takes effect at the latest when the steps in flight end."""
        self._planner.abort(request_ids)
        self._wake()

    def take_plan(self, plan: StepPlan) -> None:
        """As ``StepPlanner.take_plan``."""
        self.longest_plan_ms = max(self.longest_plan_ms, plan.latency_ms)
        self._planner.take_plan(plan)
        self._wake()

    def ask(self, request_ids: Sequence[str]) -> None:
        """These are to go to another executor."""
        self.replica.handovers.ask(request_ids)
        self._wake()

    def ask_if_idle(self) -> None:
        """For offline requests, where it is to have any and no step is in flight after which it does."""
        if self._pulls and not self._in_flight:
            self._ask_for_more([])

    def release(self, request_id: str) -> None:
        """Nobody takes it: it goes on here."""
        self.replica.handovers.release(request_id)
        self._wake()

    def gave(self, request_id: str) -> None:
        """Another executor has it."""
        self.replica.handovers.gave(request_id)
        self._wake()

    def take(self, request_id: str) -> None:
        """The KV of one that it has made room for is there."""
        self.replica.handovers.take(request_id)
        self._wake()

    def _wake(self) -> None:
        """Where there is room for a step: once all that comes at this time has come."""
        if len(self._in_flight) < self._depth and not self._is_woken:
            self._is_woken = True
            self._events.at(self._events.now_s, self._run)

    def _run(self) -> None:
        """As the live loop: launch what can be launched; where nothing runs then, say so."""
        self._is_woken = False
        for carried in self.replica.handovers.collect():
            self._give(carried)
        while len(self._in_flight) < self._depth and self._launch():
            pass
        if self._in_flight:
            return
        ended = self._tell_ended()
        if ended or not self._planner.is_idle:
            self._planner.rest()
            self._say(self._planner.idle_message())

    def _launch(self) -> bool:
        source, running = self._planner.next_step(*self._tuning)
        if not running:
            return False
        self._start(running)
        self._tell_ended()  # without a step: aborted, or never able to run
        self._say(self._planner.start(source))
        return True

    def _start(self, running: Running) -> None:
        """The engine's part: the step's outcome, and when it is there."""
        setup, start_s = self.setup, self._events.now_s
        features, sampled = _outcome(running)
        latency_ms = setup.latency.predict_ms(features)
        planned_ms = latency_ms if setup.planner is setup.latency else setup.planner.predict_ms(features)
        self.longest_plan_ms = max(self.longest_plan_ms, planned_ms)
        if setup.noise > 0:
            latency_ms *= self._noise.lognormvariate(0.0, setup.noise)
        copy_wait_ms = self._copies.wait_ms(self.replica.copies, start_s * 1e3)
        for copies in self.replica.copies_ahead:
            self._copies.start(copies, start_s * 1e3)
        end_s = self._stages.leave(start_s + copy_wait_ms / 1e3, latency_ms / 1e3)
        result = StepResult(sampled, (end_s - start_s) * 1e3 - copy_wait_ms, copy_wait_ms=copy_wait_ms)
        launched = _Launched(start_s, end_s, result, self.replica.is_interruptible)
        self._in_flight.append(launched)
        self._events.at(end_s, partial(self._finish, launched))

    def _interrupt(self) -> None:
        """The step in flight, the only one, stops at its next layer."""
        launched = self._in_flight.pop()
        self._stages = Stages(self._depth)
        end_s = min(launched.end_s, self._events.now_s + INTERRUPTED_AFTER * launched.result.latency_ms / 1e3)
        stopped = replace(launched, end_s=end_s, is_interruptible=False, is_interrupted=True)
        self._in_flight.append(stopped)
        self._events.at(end_s, partial(self._finish, stopped))

    def _finish(self, launched: _Launched) -> None:
        """Nothing where it was interrupted before its time."""
        if launched not in self._in_flight:
            return
        self._in_flight.popleft()
        entries = self.replica.in_flight()[0] if self._pulls else []
        outputs: list[AddressedOutput] = []
        if launched.is_interrupted:
            self.replica.retract()
        else:
            outputs = self.replica.finish(launched.result)
        start_s, self._busy_until_s = max(launched.start_s, self._busy_until_s), launched.end_s
        self.replica.totals.busy_s += launched.end_s - start_s
        self._tell(Progress(self.info.executor_id, start_s, launched.end_s, outputs, self._planner.take_ended()))
        if self._pulls:
            self._ask_for_more(entries)
        self._run()

    def _ask_for_more(self, entries: Sequence[ScheduledRequest]) -> None:
        """``entries``: what the last step ran."""
        wanted = wanted_by(self.replica, entries, *self._tuning, self.setup.strategy.pull_margin)
        if wanted is not None:
            self._pull(wanted)

    def _tell_ended(self) -> bool:
        """Of those who left without a step."""
        ended, now_s = self._planner.take_ended(), self._events.now_s
        if ended:
            self._tell(Progress(self.info.executor_id, now_s, now_s, [], ended))
        return bool(ended)


def _outcome(running: Running) -> tuple[BatchFeatures, dict[str, int]]:
    """The batch's features, and a token for each request whose last known token is computed."""
    scheduled, sampled = list[tuple[int, int]](), dict[str, int]()
    for sequence, num_tokens in running:
        request = sequence.request
        num_computed = request.num_computed_tokens
        scheduled.append((num_tokens, num_computed))
        if num_computed + num_tokens == request.num_tokens:
            sampled[request.request_id] = FIRST_OUTPUT_ID + sequence.sampling.seed % NUM_OUTPUT_IDS
    features = BatchFeatures()
    features.add_all(scheduled)
    return features, sampled
