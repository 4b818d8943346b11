"""One step of an engine on torch: its slots in place, its forward pass timed, its errors of one kind."""

import time
from collections.abc import Callable

import torch

from services.executor.engines.torch.host_pool import HostPool
from shared.errors import EngineError, EngineLostError
from shared.replica.engine import SampledTokens, StepBatch, StepResult


def timed_step(batch: StepBatch, host: HostPool | None, run: Callable[[], SampledTokens]) -> StepResult:
    """``run``: the forward pass and the sampling. Raises EngineError for whatever goes wrong, also for slots to copy
    where there is no host pool; EngineLostError as it comes."""
    try:
        with torch.inference_mode():
            if batch.copies and host is None:
                raise EngineError("slots cannot be copied: the engine was loaded without host slots")
            copy_wait_ms = host.wait(batch.copies) if host is not None and batch.copies else 0.0
            started_s = time.perf_counter()
            sampled = run()
            latency_ms = (time.perf_counter() - started_s) * 1000.0
    except EngineLostError:
        raise
    except Exception as error:  # vLLM and torch raise what they like; the executor needs one kind
        raise EngineError(f"step {batch.step} failed: {type(error).__name__}: {error}") from error
    return StepResult(sampled.token_ids, latency_ms, sampled.logprobs, copy_wait_ms)
