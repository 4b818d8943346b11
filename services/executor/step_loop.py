"""The executor's loop: the step planner around an engine that runs in its own threads, one per pipeline stage."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from services.executor.measure import scratch_batch
from services.executor.publisher import StepPublisher
from services.executor.watchdog import LaunchedStep, Watchdog
from shared.clock import Clock
from shared.errors import EngineError, EngineLostError
from shared.latency.features import BatchFeatures
from shared.latency.histogram import LatencyHistogram
from shared.latency.model import LatencyModel
from shared.protocol.profiling.measurements import BUSY, MeasuredShape, MeasureShape
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.replica.engine import Engine, StepBatch, StepResult, batch_shape
from shared.replica.outputs import AddressedOutput, final_output
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest

logger = logging.getLogger(__name__)

LOOK_AHEAD_AFTER = 0.5  # of a step's predicted time: by then a plan for the next one is there, or is late
ENGINE_THREADS = "engine-step"  # how the names of the threads begin that run steps


class StepLoop:
    """Runs steps while there is work, and waits where there is none. With pipeline depth K a step is launched whenever
    fewer than K are in flight and something can run that is in none of them; outcomes are applied in that order.

    An engine that takes steps ahead is handed the next step while one runs, over the expected outcome of that, and
    begins it when that has ended, beside what is done here about its outcome. Until then it is taken back, and made
    anew, when an online request or its plan comes."""

    def __init__(
        self,
        replica: Replica,
        planner: StepPlanner,
        engine: Engine,
        publisher: StepPublisher,
        tuning: Callable[[], tuple[Policy, LatencyModel]],
        clock: Clock,
        step_timeout_s: float,
        largest: Limits,
        threads: Executor | None = None,
    ) -> None:
        """``step_timeout_s``: see ``Watchdog``; ``largest``: what a batch that is measured must keep to; ``threads``:
        where the engine's steps run, one per stage at a time."""
        self._replica = replica
        self._planner = planner
        self._engine = engine
        self._publisher = publisher
        self._tuning = tuning
        self._clock = clock
        self._depth = engine.spec.pipeline_depth
        self._largest = largest
        self._threads = threads or ThreadPoolExecutor(self._depth, thread_name_prefix=ENGINE_THREADS)
        self._wake = asyncio.Event()
        self._measurements: asyncio.Queue[tuple[MeasureShape, asyncio.Future[MeasuredShape]]] = asyncio.Queue(16)
        self._measuring: asyncio.Future[MeasuredShape] | None = None
        self._num_measured = 0
        self._told_meanwhile = False  # what is held, with the blocks of what is measured
        self._in_flight: deque[LaunchedStep] = deque()  # oldest first
        self._ahead: LaunchedStep | None = None  # behind the one in flight, told nobody
        self._source_ahead = PlanSource.LOCAL  # of that one
        self._look_ahead_s = math.inf  # monotonic; when a step ahead is made without its plan
        self._step_ms = LatencyHistogram()  # since they were taken
        self._busy_until_s = 0.0  # monotonic; counted as busy up to here
        self._turn_s = 0.0  # monotonic; since when it is the turn of the oldest step
        self._last_entries: list[ScheduledRequest] = []  # of the step that ended last
        self._before_packing: Callable[[list[ScheduledRequest]], None] | None = None
        self.watchdog = Watchdog(self._oldest, self._predict_ms, step_timeout_s)
        self._hangs = False

    # What comes in, from the event loop

    def submit(self, request: GenerateRequest) -> None:
        """A request for this replica. An online one does not wait for a step that has none, nor for one that has not
        begun."""
        self._replica.submit(request)
        self.came(request.kind)

    def came(self, kind: Kind) -> None:
        """The replica has one more."""
        if kind is Kind.ONLINE or self._measuring is not None:
            running = self._oldest() if self._take_back() else self._ahead
            if running is not None and running.batch.may_be_interrupted:
                self._engine.interrupt(running.batch.step)
        self._wake.set()

    def abort(self, request_ids: list[str]) -> None:
        """Takes effect at the latest when the steps in flight end."""
        self._planner.abort(request_ids)
        self._wake.set()

    def take_plan(self, plan: StepPlan) -> None:
        """As ``StepPlanner.take_plan``."""
        is_of_step_ahead = self._ahead is not None and self._ahead.batch.step == plan.step
        self._planner.take_plan(plan, is_late=is_of_step_ahead and not self._take_back())
        if self._measuring is not None:
            self.came(Kind.OFFLINE)
        self._wake.set()

    def wake(self) -> None:
        """Budgets or models changed: what did not fit may fit now."""
        self._wake.set()

    def look_before_packing(self, look: Callable[[list[ScheduledRequest]], None] | None) -> None:
        """Have ``look`` called, with what ran in the step that ended last, whenever the next is to be packed."""
        self._before_packing = look
        self._wake.set()

    async def measure(self, shape: MeasureShape) -> MeasuredShape:
        """Time a batch while nothing else runs; an error where the replica has work, or gets some meanwhile."""
        if self._replica.has_work:
            return unmeasured(BUSY)
        done: asyncio.Future[MeasuredShape] = asyncio.get_running_loop().create_future()
        await self._measurements.put((shape, done))
        self._wake.set()
        return await done

    # The loop

    async def run(self) -> None:
        """Never returns; the steps in flight are finished before a cancellation goes through. Raises EngineLostError,
        with every request as it was: it is for others to go on with them."""
        await self.announce_idle()
        try:
            while True:
                self._wake.clear()
                if self._before_packing is not None:
                    self._before_packing(self._last_entries)
                if await self._launch():
                    self._refuse_measurements(BUSY)
                    continue
                if self._in_flight:
                    self._launch_ahead()
                    await self._finish_or_wake()
                    continue
                await self._after_last_step()
                if not self._measurements.empty():
                    await self._measure_one()
                elif not self._wake.is_set():
                    await self._wake.wait()
                    self._turn_s = self._clock.monotonic_s()
        finally:
            running = [launched.running for launched in self._in_flight]
            if self._ahead is not None and not self._ahead.job.cancel():
                running.append(self._ahead.running)
            if running and not self._hangs:
                await self._until_ended(running)

    async def watch(self) -> None:
        """Beside ``run``, never returns. Raises EngineLostError where the engine hangs, as ``run`` does."""
        try:
            await self.watchdog.run()
        except EngineLostError:
            self._hangs = True
            raise

    async def _until_ended(self, running: list[asyncio.Future[StepResult]]) -> None:
        """Or found to hang, by who looks at that beside this."""
        ending, watching = asyncio.ensure_future(asyncio.wait(running)), asyncio.ensure_future(self.watch())
        await asyncio.wait((ending, watching), return_when=asyncio.FIRST_COMPLETED)
        for each in (ending, watching):
            each.cancel()
        await asyncio.gather(ending, watching, return_exceptions=True)
        for step in running:
            if step.done() and not step.cancelled():
                step.exception()  # seen: of the steps that an engine loses together the first one's is raised

    async def announce_idle(self) -> None:
        """Say what is held here while no step runs, so that a plan can come. Nothing while a step runs."""
        if self._planner.is_idle:
            self._told_meanwhile |= self._measuring is not None
            await self._publisher.step_started(self._planner.idle_message())

    def close(self) -> None:
        """After ``run`` was cancelled. Who waits for a measurement is told that none comes. An engine that hangs is not
        closed: it ends with the process."""
        self._refuse_measurements("stopping")
        if self._measuring is not None:
            _answer(self._measuring, unmeasured("stopping"))
        if not self._hangs:
            self._engine.close()
            self._threads.shutdown()

    def take_step_ms(self) -> LatencyHistogram:
        """How long the steps took that ended since the last call."""
        step_ms, self._step_ms = self._step_ms, LatencyHistogram()
        return step_ms

    async def _launch(self) -> bool:
        """Schedule, launch, publish while it runs. False where there is no room, or nothing to run."""
        if len(self._in_flight) == self._depth:
            return False
        source, sequences = self._planner.next_step(*self._tuning())
        if not sequences:
            return False
        batch = self._replica.batch(sequences, self._planner.step)
        for copies in (*batch.copies, *self._replica.copies_ahead):
            self._engine.start_copies(copies)
        self._in_flight.append(self._execute(batch))
        before = self._collect_ended([])  # ended without a step: aborted, or never able to run
        started = self._start(source)
        await self._publisher.step_started(started)
        await self._publisher.tokens(batch.step, before)
        return True

    def _launch_ahead(self) -> None:
        """Hand the next step over, where that is of use by now: its plan is there, or may come too late."""
        if self._ahead is not None or not self._engine.spec.takes_steps_ahead or len(self._in_flight) != 1:
            return
        if not self._planner.has_plan and self._clock.monotonic_s() < self._look_ahead_s:
            return
        self._look_ahead_s = math.inf  # for this step, unless there is news
        source, sequences = self._planner.look_ahead(*self._tuning())
        if sequences:
            self._ahead = self._execute(self._replica.batch(sequences, self._planner.step))
            self._source_ahead = source

    def _take_back(self) -> bool:
        """The step ahead, to make it anew; False where it has begun."""
        if self._ahead is None:
            return True
        if not self._ahead.job.cancel():
            return False
        self._forget_ahead()
        return True

    def _forget_ahead(self) -> None:
        self._ahead = None
        self._look_ahead_s = 0.0
        self._replica.take_back()

    async def _finish_or_wake(self) -> None:
        """Apply the oldest step when it ends; or return earlier, where there is room for another, or for one ahead, and
        news came or it is time for that."""
        launched = self._in_flight[0]
        has_room = len(self._in_flight) < self._depth or self._engine.spec.takes_steps_ahead
        if has_room and not launched.running.done():
            left_s = self._look_ahead_s - self._clock.monotonic_s()
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait(
                    (launched.running, waking),
                    timeout=max(0.0, left_s) if left_s < math.inf and self._ahead is None else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                waking.cancel()
            if not launched.running.done():
                return
        outputs = self._collect_ended(await self._finish(launched))
        started = self._start_ahead()
        now_s = self._clock.monotonic_s()
        self._replica.totals.busy_s += now_s - max(launched.start_s, self._busy_until_s)
        self._busy_until_s = now_s
        await self._publisher.tokens(launched.batch.step, outputs)
        if started is not None:
            await self._publisher.step_started(started)

    def _start_ahead(self) -> StepStarted | None:
        """The step ahead is the one in flight from here on; the message about it."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        self._in_flight.append(ahead)
        self.watchdog.step_began()
        return self._start(self._source_ahead)

    def _start(self, source: PlanSource) -> StepStarted:
        """As ``StepPlanner.start``, for the newest step in flight."""
        launched = self._in_flight[-1]
        if self._engine.spec.takes_steps_ahead:
            predicted_s = self._predict_ms(launched.batch) / 1e3
            self._look_ahead_s = self._clock.monotonic_s() + LOOK_AHEAD_AFTER * predicted_s
        return self._planner.start(source)

    async def _finish(self, launched: LaunchedStep) -> list[AddressedOutput]:
        turn_began_s = self._turn_s
        if self._before_packing is not None:
            self._last_entries = self._replica.in_flight()[0]
        try:
            result = await self._ended()
        except EngineError as error:
            logger.exception("engine step failed", extra={"step": launched.batch.step})
            await self._drop_ahead()
            self._replica.fail(str(error))
            return []
        if result.is_interrupted:
            await self._drop_ahead()
            self._replica.retract()
            return []
        self._step_ms.add(result.step_ms)
        await self._publisher.sample(launched.batch.step, batch_shape(launched.batch), result.latency_ms)
        return self._replica.finish(result, (self._turn_s - turn_began_s) * 1e3)

    async def _drop_ahead(self) -> None:
        """The step ahead stands on nothing: take it back, where it has begun once the engine has seen that. Raises
        EngineLostError where it has not."""
        if self._ahead is None or self._take_back():
            return
        running = self._ahead.running
        await asyncio.wait((running,))
        self._forget_ahead()
        if isinstance(running.exception(), EngineLostError):
            running.result()

    def _execute(self, batch: StepBatch) -> LaunchedStep:
        """In the engine's threads, when they have ended what they were given before."""
        start_s = self._clock.monotonic_s()
        job = self._threads.submit(self._engine.execute, batch)
        self.watchdog.step_began()
        return LaunchedStep(batch, job, asyncio.wrap_future(job), start_s)

    async def _ended(self) -> StepResult:
        """Of the oldest step, once it is in flight no more, whose turn ends whatever came of it. Raises what the engine
        did."""
        running = self._in_flight[0].running
        await asyncio.wait((running,))  # a cancellation leaves it in flight
        self._in_flight.popleft()
        self._turn_s = self._clock.monotonic_s()
        return running.result()

    def _oldest(self) -> LaunchedStep | None:
        """Of those that the engine has not ended, the one ahead included."""
        launched = (*self._in_flight, *((self._ahead,) if self._ahead is not None else ()))
        return next((each for each in launched if not each.running.done()), None)

    def _predict_ms(self, batch: StepBatch) -> float:
        _, model = self._tuning()
        return model.predict_ms(batch_shape(batch))

    def _collect_ended(self, outputs: list[AddressedOutput]) -> list[AddressedOutput]:
        """Add the last outputs of those who left; hand results of offline requests over to be stored."""
        for ended in self._planner.take_ended():
            level = logging.WARNING if ended.finish_reason is FinishReason.ERROR else logging.DEBUG
            event = {"finish_reason": ended.finish_reason.value, "why": ended.error}
            logger.log(level, "request ended", extra=ended.sequence.log_ids | event)
            outputs.append((ended.sequence.gateway_id, final_output(ended)))
            self._publisher.remember(ended)
        return outputs

    async def _after_last_step(self) -> None:
        """Nothing runs from here on: tell who left, and that a plan is welcome."""
        outputs = self._collect_ended([])
        await self._publisher.tokens(self._planner.step, outputs)
        if outputs or not self._planner.is_idle:
            self._planner.rest()
            await self.announce_idle()

    def _refuse_measurements(self, why: str) -> None:
        """Those that wait for their turn."""
        while not self._measurements.empty():
            _answer(self._measurements.get_nowait()[1], unmeasured(why))

    async def _measure_one(self) -> None:
        shape, self._measuring = self._measurements.get_nowait()
        self._num_measured += 1
        scratch = self._replica.pool, self._largest, self._engine.spec, self._num_measured
        latencies: list[float] = []
        try:
            with scratch_batch(shape, *scratch) as batch:
                for _ in range(max(1, shape.repeats)):
                    self._in_flight.append(self._execute(batch))
                    result = await self._ended()
                    if result.is_interrupted or self._replica.has_work or self._planner.has_plan:
                        latencies = []
                        break
                    latencies.append(result.latency_ms)
                measured = MeasuredShape(batch_shape(batch), latencies) if latencies else unmeasured(BUSY)
        except (EngineError, ValueError) as error:
            measured = unmeasured(str(error))
        _answer(self._measuring, measured)
        self._measuring = None
        is_to_tell, self._told_meanwhile = self._told_meanwhile, False
        if is_to_tell and not (self._replica.has_work or self._planner.has_plan):
            await self.announce_idle()


def unmeasured(why: str) -> MeasuredShape:
    """The answer where it could not be done."""
    return MeasuredShape(BatchFeatures(0, 0, 0, 0, 0), [], why)


def _answer(waiting: asyncio.Future[MeasuredShape], measured: MeasuredShape) -> None:
    if not waiting.done():
        waiting.set_result(measured)
