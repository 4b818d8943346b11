"""Notices an engine that hangs."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from dataclasses import dataclass

from shared.cancellation import check_cancelled
from shared.errors import EngineLostError
from shared.replica.engine import StepBatch, StepResult

logger = logging.getLogger(__name__)

TICK_S = 0.25
TIMES_PREDICTED = 20.0  # a step may take so long, and the timeout in any case
REPORTED_AFTER = 0.1  # of the time that a step may take


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """That the engine runs, or will when it has ended the one before."""

    batch: StepBatch
    job: concurrent.futures.Future[StepResult]
    running: asyncio.Future[StepResult]  # the same, for the event loop
    start_s: float  # monotonic


class Watchdog:
    """Looks at the step that the engine is to end next, from the first word of ``step_began`` on until none runs. It
    counts its own ticks: time in which this process did not run is not held against the engine."""

    def __init__(
        self, oldest: Callable[[], LaunchedStep | None], predict_ms: Callable[[StepBatch], float], timeout_s: float
    ) -> None:
        """``oldest``: of the steps that run, None where none does. ``timeout_s``: see TIMES_PREDICTED."""
        self.report = ""  # of a step that takes long, in words; empty where none does
        self._oldest = oldest
        self._predict_ms = predict_ms
        self._timeout_s = timeout_s
        self._has_step = asyncio.Event()

    def step_began(self) -> None:
        """The engine was handed one."""
        self._has_step.set()

    async def run(self) -> None:
        """Never returns. Raises EngineLostError for a step that takes longer than it may."""
        watched, elapsed_s = self._oldest(), 0.0
        while True:
            if watched is None:
                self._has_step.clear()
                await self._has_step.wait()
                watched = self._oldest()
            await asyncio.sleep(TICK_S)
            check_cancelled()
            oldest = self._oldest()
            elapsed_s = elapsed_s + TICK_S if oldest is watched else 0.0
            watched = oldest
            self._say("" if oldest is None else self._judged(oldest.batch, elapsed_s))

    def _judged(self, batch: StepBatch, elapsed_s: float) -> str:
        if elapsed_s < REPORTED_AFTER * self._timeout_s:
            return ""
        predicted_ms = self._predict_ms(batch)
        limit_s = max(self._timeout_s, TIMES_PREDICTED * predicted_ms / 1e3)
        what = f"step {batch.step} has taken {elapsed_s:.3g} s, where {predicted_ms:.3g} ms were predicted"
        if elapsed_s >= limit_s:
            raise EngineLostError(f"the engine hangs: {what}")
        return f"{what}; the executor ends at {limit_s:.3g} s" if elapsed_s >= REPORTED_AFTER * limit_s else ""

    def _say(self, report: str) -> None:
        if bool(report) != bool(self.report):
            logger.warning(report or "steps end again")
        self.report = report
