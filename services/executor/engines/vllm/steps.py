"""Steps of vLLM's workers: as many in flight as there are pipeline stages."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

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
        """The tokens that the step sampled. Raises EngineLostError where no step can follow; else what
        the workers raised."""
        with self._telling:
            before, ended = self._last_ended, threading.Event()
            output = self._scheduler.tell(sequences)
            answers = self._launched(output)
            self._last_ended = ended
        before.wait()  # answers carry no step: each thread reads when it is its turn
        try:
            executed, sampled = answers
            executed.result()
            answer = sampled.result()
        except Exception as error:
            self._raise_if_lost(error)
            raise
        finally:
            ended.set()
        with self._telling:
            return self._scheduler.settle(sequences, answer)

    def _launched(self, output: Any) -> tuple[Future[Any], Future[Any]]:
        try:
            return (
                self._workers.execute_model(output, non_block=True),
                self._workers.sample_tokens(None, non_block=True),
            )
        except Exception as error:
            self._raise_if_lost(error)
            raise

    def _raise_if_lost(self, error: Exception) -> None:
        """A worker that does not answer in time is as lost as one that has ended: its answer would be taken for that
        of a later step."""
        if getattr(self._workers, "is_failed", False) or isinstance(error, TimeoutError):
            raise EngineLostError(f"a worker of vLLM is gone: {type(error).__name__}: {error}") from error
