"""Timing one batch shape on scratch KV blocks, for the profiler."""

from __future__ import annotations

from shared.protocol.executors import EngineSpec
from shared.protocol.measurements import MeasureShape, PrefillChunk
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind

SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


class ScratchBatch:
    """Blocks for one measured batch; ``free`` gives them back. Nothing in them is ever findable as a prefix."""

    def __init__(self, shape: MeasureShape, pool: KVPool, limits: Limits, spec: EngineSpec) -> None:
        """Raises ValueError where the shape does not fit the executor."""
        self._pool = pool
        self._ids: list[str] = []
        chunks = [*shape.prefills, *(PrefillChunk(1, length) for length in shape.decode_context_lens)]
        num_tokens, num_seqs = sum(chunk.num_tokens for chunk in chunks), len(chunks)
        if not 0 < num_tokens <= limits.max_num_batched_tokens or num_seqs > limits.max_num_seqs:
            raise ValueError(f"{num_tokens} tokens of {num_seqs} requests are not one step of this executor")
        if any(chunk.num_tokens < 1 or chunk.num_computed_tokens < 0 for chunk in chunks):
            raise ValueError("lengths must be at least 1")
        if min(shape.decode_context_lens, default=1) < 1:
            raise ValueError("lengths must be at least 1")
        longest = max(chunk.num_tokens + chunk.num_computed_tokens for chunk in chunks)
        if longest > spec.max_model_len:
            raise ValueError(f"{longest} tokens are beyond the context of {spec.max_model_len}")
        try:
            sequences = [self._sequence(chunk, spec) for chunk in chunks]
        except ValueError:
            self.free()
            raise
        self.batch = StepBatch(-1, sequences)

    def free(self) -> None:
        """Give the blocks back."""
        for request_id in self._ids:
            self._pool.free(request_id)

    def _sequence(self, chunk: PrefillChunk, spec: EngineSpec) -> Sequence:
        request_id = f"measure-{len(self._ids)}"
        self._pool.start(request_id, Kind.OFFLINE, ())
        self._ids.append(request_id)
        if not self._pool.grow(request_id, chunk.num_computed_tokens + chunk.num_tokens):
            raise ValueError("not enough free KV blocks")
        token_ids = [(position * 7919 + len(self._ids)) % spec.vocab_size for position in range(chunk.num_tokens)]
        block_table = self._pool.table(request_id)
        return Sequence(
            request_id,
            token_ids,
            chunk.num_computed_tokens,
            block_table,
            SAMPLING,
            needs_sample=True,
            fills_right=self._pool.fills_right(Kind.OFFLINE),
        )
