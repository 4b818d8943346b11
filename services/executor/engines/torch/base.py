"""What the engines on torch have in common: a step's slots in place, its forward pass timed, its errors of one kind."""

import threading
import time
from abc import ABC, abstractmethod

import torch

from services.executor.engines.last_step import LastStep
from services.executor.engines.torch.device import is_lost, make_current
from services.executor.engines.torch.host_pool import HostSlots, set_num_threads
from services.executor.engines.torch.interruption import Interruption, StepInterruptedError
from shared.errors import EngineError, EngineLostError
from shared.protocol.executors import EngineSpec
from shared.replica.engine import SampledTokens, Sequence, StepBatch, StepResult
from shared.scheduling.kv.slot_transfers import SlotOperations


class EngineOnTorch(ABC):
    """A loaded model with its KV blocks; see ``shared.replica.engine.Engine``."""

    def __init__(
        self,
        spec: EngineSpec,
        device: torch.device,
        host: HostSlots | None,
        num_threads: int,
        interruption: Interruption | None = None,
    ) -> None:
        """``host``: None where no slots can be copied. ``interruption``: where layers ask it already."""
        self.spec = spec
        self._device = device
        self._host = host
        self._num_threads = num_threads
        self._threads = threading.local()
        self._interruption = interruption or Interruption(device)
        self._last_step = LastStep()

    def start_copies(self, copies: SlotOperations) -> None:
        """See ``Engine.start_copies``; without host slots the step fails."""
        if self._host is not None:
            self._host.start(copies)

    def execute(self, batch: StepBatch) -> StepResult:
        """Run one step; see ``Engine.execute``. Raises EngineError for whatever goes wrong, also for slots to copy
        where there is no host pool; EngineLostError as it comes, and where the device takes no work any more."""
        if not batch.sequences:
            return StepResult({}, 0.0)
        if not self._last_step.take(batch):
            return StepResult({}, 0.0, is_interrupted=True)
        self._claim_thread()
        try:
            with torch.inference_mode():
                if batch.copies and self._host is None:
                    raise EngineError("slots cannot be copied: the engine was loaded without host slots")
                copy_wait_ms = self._host.wait(batch.copies) if self._host is not None and batch.copies else 0.0
                started_s = time.perf_counter()
                self._interruption.begin(batch)
                sampled = self._run(batch.sequences)
                latency_ms = (time.perf_counter() - started_s) * 1000.0
        except StepInterruptedError:
            latency_ms = (time.perf_counter() - started_s) * 1000.0
            return StepResult({}, latency_ms, copy_wait_ms=copy_wait_ms, is_interrupted=True)
        except EngineLostError:
            raise
        except Exception as error:  # vLLM and torch raise what they like; the executor needs one kind
            what = f"step {batch.step} failed: {type(error).__name__}: {error}"
            raise (EngineLostError if is_lost(self._device) else EngineError)(what) from error
        self._last_step.keep(batch.step, sampled.token_ids)
        return StepResult(
            sampled.token_ids,
            latency_ms,
            sampled.logprobs,
            copy_wait_ms,
            sampled.failed,
            prompt_scores=sampled.prompt_scores,
            embeddings=sampled.embeddings,
        )

    def interrupt(self, step: int) -> None:
        """See ``Engine.interrupt``."""
        self._interruption.ask(step)

    def close(self) -> None:
        """Free the model and the KV blocks; the engine cannot be used afterwards."""
        if self._host is not None:
            self._host.close()
            self._host = None

    @abstractmethod
    def _run(self, sequences: list[Sequence]) -> SampledTokens:
        """The forward pass and the sampling."""

    def _claim_thread(self) -> None:
        """OpenMP's thread count and the current GPU belong to the calling thread, not to the process."""
        if not hasattr(self._threads, "is_ready"):
            self._threads.is_ready = True
            set_num_threads(self._num_threads)
            make_current(self._device)
