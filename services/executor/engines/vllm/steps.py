"""Steps of vLLM's workers: as many in flight as there are pipeline stages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vllm.v1.executor import Executor

from services.executor.engines.vllm.scheduler import PlannedScheduler
from shared.errors import EngineLostError
from shared.replica.engine import SampledTokens, Sequence


class StepsInFlight:
    """Launches steps in the order of the calls, and gives each caller what came out of its own. Workers take steps in
    that order too, and answer in it."""

    def __init__(self, workers: Executor, scheduler: PlannedScheduler) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._telling = threading.Lock()
        self._last_ended = threading.Event()  # of the step that was launched last
        self._last_ended.set()

    def run(self, sequences: list[Sequence]) -> SampledTokens:
        """The tokens that the step sampled. Raises EngineLostError where no step can follow; else what the workers
        raised."""
        with self._telling:
            before, ended = self._last_ended, threading.Event()
            output = self._scheduler.tell(sequences)
            with self._loss_named():
                executed = self._workers.execute_model(output, non_block=True)
                sampled = self._workers.sample_tokens(None, non_block=True)
            self._last_ended = ended
        before.wait()  # answers carry no step: each thread reads when it is its turn
        try:
            with self._loss_named():
                executed.result()
                answer = sampled.result()
        finally:
            ended.set()
        with self._telling:
            return self._scheduler.settle(sequences, answer)

    @contextmanager
    def _loss_named(self) -> Iterator[None]:
        """A worker that does not answer in time is as lost as one that has ended: its answer would be taken for that
        of a later step."""
        try:
            yield
        except Exception as error:
            if getattr(self._workers, "is_failed", False) or isinstance(error, TimeoutError):
                raise EngineLostError(f"a worker of vLLM is gone: {type(error).__name__}: {error}") from error
            raise
