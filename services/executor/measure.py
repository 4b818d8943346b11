"""Timing one batch shape on scratch KV blocks, for the profiler."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.measurements import MeasureShape, PrefillChunk
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind

SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


@contextmanager
def scratch_batch(
    shape: MeasureShape, pool: KVPool, limits: Limits, spec: EngineSpec, number: int = 1
) -> Iterator[StepBatch]:
    """One measured batch on blocks that are given back afterwards. Nothing in them is ever findable as a prefix. Its
    step is ``-number``, by which it is interrupted. Raises ValueError where the shape does not fit the executor."""
    chunks = [*shape.prefills, *(PrefillChunk(1, length) for length in shape.decode_context_lens)]
    _check(chunks, shape, limits, spec)
    for place in range(len(chunks)):
        pool.start(_request_id(place), Kind.OFFLINE, 0, ())
    try:
        sequences = [_sequence(place, chunk, pool, spec) for place, chunk in enumerate(chunks)]
        yield StepBatch(-number, sequences, may_be_interrupted=_may_be_interrupted(spec))
    finally:
        for place in range(len(chunks)):
            pool.free(_request_id(place))


def _may_be_interrupted(spec: EngineSpec) -> bool:
    """Not on CUDA, where the host does not run ahead of such a step, which would be measured too; steps are short
    there."""
    return spec.is_interruptible and not spec.device.startswith("cuda")


def _check(chunks: list[PrefillChunk], shape: MeasureShape, limits: Limits, spec: EngineSpec) -> None:
    num_tokens, num_seqs = sum(chunk.num_tokens for chunk in chunks), len(chunks)
    if not 0 < num_tokens <= limits.max_num_batched_tokens or num_seqs > limits.max_num_seqs:
        raise ValueError(f"{num_tokens} tokens of {num_seqs} requests are not one step of this executor")
    has_none = any(chunk.num_tokens < 1 or chunk.num_computed_tokens < 0 for chunk in chunks)
    if has_none or min(shape.decode_context_lens, default=1) < 1:
        raise ValueError("lengths must be at least 1")
    longest = max(chunk.num_tokens + chunk.num_computed_tokens for chunk in chunks)
    if longest > spec.max_model_len:
        raise ValueError(f"{longest} tokens are beyond the context of {spec.max_model_len}")


def _request_id(number: int) -> str:
    return f"measure-{number}"


def _sequence(number: int, chunk: PrefillChunk, pool: KVPool, spec: EngineSpec) -> Sequence:
    request_id = _request_id(number)
    if not pool.grow(request_id, chunk.num_computed_tokens + chunk.num_tokens):
        raise ValueError("not enough free KV blocks")
    token_ids = [(position * 7919 + number) % spec.vocab_size for position in range(chunk.num_tokens)]
    table, fills_right = pool.table(request_id), pool.fills_right(Kind.OFFLINE)
    return Sequence(request_id, token_ids, chunk.num_computed_tokens, table, SAMPLING, True, fills_right)
