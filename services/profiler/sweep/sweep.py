"""One sweep: every shape is asked of one executor, within a time limit."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from services.profiler.sweep.load_watch import LoadWatch
from services.profiler.sweep.shapes import half_of, num_tokens, sweep_shapes, warm_up_shape
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import NoResponderError, SlackwaterError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.measurements import BUSY, REPLACED, LatencySample, MeasuredShape, MeasureShape

logger = logging.getLogger(__name__)

LIMIT_S = 24.0  # no shape starts after this, or later where an executor is slow:
SLOW_STEPS = 40  # after the time of so many of the shortest steps,
SLOW_LIMIT_S = 60.0  # which is no more than this
GRACE_S = 5.0  # for the shape that runs at the limit: a sweep takes less than 30 s, of a slow executor 65 s
SILENCE_S = 5.0  # without a heartbeat: the executor is gone
ENOUGH_SHAPES = 12
MOST_SHARE = 0.5  # of the time that is left, for one shape
PROGRESS_EVERY = 10

Progress = Callable[[int, int], None]


class ExecutorSilentError(SlackwaterError):
    """An executor does not answer and gives no heartbeat, or another incarnation of it answers."""


class ExecutorBusyError(SlackwaterError):
    """An executor had work for so long that too little could be measured."""


class NothingMeasuredError(SlackwaterError):
    """An executor refused every shape, or was too slow for any."""


class Speed:
    """How long a batch may take, by those measured so far: what the one with the fewest tokens took, and for each token
    more the least that any other shows. Where there is no other, all of its time counts as that of its tokens."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # tokens -> the shortest milliseconds

    def add(self, num_tokens: int, latency_ms: float) -> None:
        """A batch of so many tokens has taken so long."""
        self._known[num_tokens] = min(latency_ms, self._known.get(num_tokens, latency_ms))

    def expected_ms(self, num_tokens: int) -> float:
        """0 where nothing was measured."""
        if not self._known:
            return 0.0
        fewest = min(self._known)
        least_ms = self._known[fewest]
        others = (max(0.0, ms - least_ms) / (tokens - fewest) for tokens, ms in self._known.items() if tokens > fewest)
        return max(least_ms, least_ms + min(others, default=least_ms / fewest) * (num_tokens - fewest))


@dataclass
class Sweep:
    """Measures one executor; each measurement goes to the predictor as it comes."""

    bus: Bus
    load: LoadWatch
    clock: Clock
    info: ExecutorInfo
    on_progress: Progress
    limit_s: float = LIMIT_S
    is_cut: bool = field(init=False, default=False)  # the executor had work until the time was up
    _measured: list[MeasuredShape] = field(init=False, default_factory=list)
    _speed: Speed = field(init=False, default_factory=Speed)

    def __post_init__(self) -> None:
        self._begin_s = self.clock.monotonic_s()

    async def run(self) -> list[MeasuredShape]:
        """In the order of ``sweep_shapes``, as far as the time goes; in the place of one that may take too much of it a
        smaller one, so that a slow executor has prompts of some length measured, too.

        Raises ExecutorSilentError, ExecutorBusyError and NothingMeasuredError.
        """
        shapes, asked = sweep_shapes(self.info), list[MeasureShape]()
        self._log("sweep started", 0, len(shapes))
        await self._measure(warm_up_shape(self.info))
        for done, shape in enumerate(shapes):
            self.on_progress(done, len(shapes))
            if done and done % PROGRESS_EVERY == 0:
                self._log("sweep goes on", done, len(shapes))
            fitting = self._fitting(shape)
            if fitting is None or fitting in asked:
                continue
            asked.append(fitting)
            measured = await self._measure(fitting)
            if measured is not None:
                await self._keep(fitting, measured)
        if not self._measured:
            raise NothingMeasuredError(f"executor {self.info.executor_id} ran none of {len(shapes)} shapes")
        self.on_progress(len(shapes), len(shapes))
        self._log("sweep ended", len(self._measured), len(shapes))
        return self._measured

    async def _keep(self, shape: MeasureShape, measured: MeasuredShape) -> None:
        self._measured.append(measured)
        self._speed.add(num_tokens(shape), min(measured.latencies_ms))
        await publish_samples(self.bus, self.info, [measured])

    async def _measure(self, shape: MeasureShape) -> MeasuredShape | None:
        """None where the executor cannot run this shape, or the time is up."""
        while self._left_s() > 0:
            measured = await self._ask(shape)
            if measured is None or measured.latencies_ms:
                return measured
            if measured.error == REPLACED:
                raise ExecutorSilentError(f"executor {self.info.executor_id} is not the one that registered")
            if measured.error != BUSY:
                logger.info("shape refused", extra={"executor_id": self.info.executor_id, "why": measured.error})
                return None
            await self._wait_idle()
        return None

    async def _ask(self, shape: MeasureShape) -> MeasuredShape | None:
        """None where a live executor is too slow for it."""
        executor_id = self.info.executor_id
        timeout_s, shape = self._left_s() + GRACE_S, replace(shape, epoch=self.info.epoch)
        asking = asyncio.create_task(
            self.bus.request(subjects.measure(executor_id), shape, MeasuredShape, timeout_s), name="measure"
        )
        silent = asyncio.create_task(self.load.wait_silent(executor_id, SILENCE_S), name="silent")
        try:
            await asyncio.wait((asking, silent), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ExecutorSilentError(f"executor {executor_id} gave no heartbeat for {SILENCE_S:g} s")
            return asking.result()
        except NoResponderError as error:
            if self._left_s() > 0:
                raise ExecutorSilentError(f"executor {executor_id} does not answer") from error
            return None
        finally:
            asking.cancel()
            silent.cancel()

    async def _wait_idle(self) -> None:
        """Until the time is up. Raises ExecutorBusyError where what was measured until then is too little."""
        try:
            async with asyncio.timeout(max(0.0, self._left_s())):
                await self.load.wait_idle(self.info.executor_id)
        except TimeoutError:
            if len(self._measured) < ENOUGH_SHAPES:
                raise ExecutorBusyError(f"executor {self.info.executor_id} was not idle long enough") from None
            self.is_cut = True

    def _fitting(self, shape: MeasureShape) -> MeasureShape | None:
        """The shape, or as much of it as may take MOST_SHARE of the time that is left; None where nothing does."""
        fitting: MeasureShape | None = shape
        while fitting is not None and self._expected_s(fitting) >= MOST_SHARE * self._left_s():
            fitting = half_of(fitting)
        return fitting

    def _expected_s(self, shape: MeasureShape) -> float:
        return self._speed.expected_ms(num_tokens(shape)) * shape.repeats / 1e3

    def _left_s(self) -> float:
        slow_s = min(SLOW_LIMIT_S, SLOW_STEPS * self._speed.expected_ms(1) / 1e3)
        return self._begin_s + max(self.limit_s, slow_s) - self.clock.monotonic_s()

    def _log(self, event: str, done: int, total: int) -> None:
        ids = {"executor_id": self.info.executor_id, "profile_key": self.info.profile_key}
        logger.info(event, extra={**ids, "done": done, "total": total})


async def publish_samples(bus: Bus, info: ExecutorInfo, measurements: list[MeasuredShape]) -> None:
    """To the predictor, as if they were steps of the executor: one sample for each repeat."""
    for measured in measurements:
        for latency_ms in measured.latencies_ms:
            sample = LatencySample(info.executor_id, info.profile_key, 0, measured.shape, latency_ms)
            await bus.publish(subjects.sample(info.executor_id), sample)
