"""An engine without a model: a step takes as long as a latency model says, tokens come from a seeded generator.

With it the whole stack runs at GPU scale on a laptop.
"""

from __future__ import annotations

import threading
import time

from services.executor.engine import EngineSpec, Sequence, StepBatch, StepResult
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.swap import SwapModel

MASK = (1 << 64) - 1


class SimEngine:
    """``mean_output_tokens``: EOS comes with this mean, geometrically; ``time_scale``: 0.1 is ten times as fast.

    The predicted time of a step is shared evenly by the spec's pipeline stages; a step enters each in turn, when the
    step before has left it. Slots are copied beside it, as long as ``swap`` says: a step takes the longer of both.
    """

    def __init__(
        self,
        spec: EngineSpec,
        latency: LatencyModel,
        mean_output_tokens: float = 128.0,
        time_scale: float = 1.0,
        swap: SwapModel | None = None,
    ) -> None:
        self.spec = spec
        self._swap = swap or SwapModel()
        self._latency = latency
        self._eos_threshold = int((1 << 32) / mean_output_tokens)
        self._time_scale = time_scale
        self._closed = threading.Event()
        self._stages = [0.0] * spec.pipeline_depth  # when each is free, on the performance counter
        self._stages_lock = threading.Lock()

    def execute(self, batch: StepBatch) -> StepResult:
        """Takes the predicted time, less what choosing the tokens took, plus what earlier steps block it."""
        start = time.perf_counter()
        features = BatchFeatures()
        sampled = {}
        for sequence in batch.sequences:
            features.add_scheduled(len(sequence.token_ids), sequence.num_computed_tokens)
            if sequence.needs_sample:
                sampled[sequence.request_id] = self._token(sequence)
        end = self._leave(start, self._latency.predict_ms(features) * self._time_scale / 1e3)
        self._closed.wait(max(0.0, end - time.perf_counter()))
        latency_ms = (time.perf_counter() - start) * 1e3
        operations = batch.operations
        if operations:
            swap_ms = self._swap.predict_ms(len(operations.restores), len(operations.checkpoints)) * self._time_scale
            self._closed.wait(max(0.0, start + swap_ms / 1e3 - time.perf_counter()))
        return StepResult(sampled, latency_ms)

    def close(self) -> None:
        """A step that runs ends at once."""
        self._closed.set()

    def _leave(self, start: float, duration_s: float) -> float:
        """When a step that starts now has been through all stages."""
        with self._stages_lock:
            time_s = start
            for stage, free in enumerate(self._stages):
                time_s = max(time_s, free) + duration_s / len(self._stages)
                self._stages[stage] = time_s
            return time_s

    def _token(self, sequence: Sequence) -> int:
        """A function of seed and position alone."""
        position = sequence.num_computed_tokens + len(sequence.token_ids)
        draw = _mix(sequence.sampling.seed * 0x9E3779B97F4A7C15 + position)
        if self.spec.eos_token_ids and (draw & 0xFFFFFFFF) < self._eos_threshold and not sequence.sampling.ignore_eos:
            return self.spec.eos_token_ids[0]
        token_id = (draw >> 32) % self.spec.vocab_size
        while token_id in self.spec.eos_token_ids:
            token_id = (token_id + 1) % self.spec.vocab_size
        return token_id


def _mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = ((value & MASK) ^ ((value & MASK) >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)
