"""Whether a new latency model says something else about the batches of a workload."""

from collections.abc import Iterator

from shared.latency.features import BatchFeatures
from shared.protocol.executors import ExecutorInfo
from shared.protocol.latency_models import LatencyModelRecord
from shared.protocol.slo_profile import WorkloadFacts

TOLERANCE = 0.05
DECODES = (1, 4, 16, 64)


def model_drift(
    model: LatencyModelRecord, before: LatencyModelRecord | None, workload: WorkloadFacts, info: ExecutorInfo
) -> str:
    """By how much it differs where it differs most, beyond 5%, or that the machine has left the model before; empty
    where neither is so. A model that is not known any more counts as different."""
    if before is None:
        return "the model of the profile is not known any more"
    if model.drifts > before.drifts:
        ratio = "" if model.drift_ratio is None else f" by {model.drift_ratio:.3g}"
        return f"measured times have left the model{ratio}"
    new, old = model.latency_model(), before.latency_model()
    pairs = [(new.predict_ms(batch), old.predict_ms(batch)) for batch in typical_batches(workload, info)]
    new_ms, old_ms = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / max(*pair, 1e-9))
    if abs(new_ms - old_ms) <= TOLERANCE * max(new_ms, old_ms):
        return ""
    return f"a batch is predicted at {new_ms:.4g} ms instead of {old_ms:.4g} ms"


def typical_batches(workload: WorkloadFacts, info: ExecutorInfo) -> Iterator[BatchFeatures]:
    """Decodes at the mean context, alone and beside a mean prompt's first chunk; and a full chunk."""
    context_len = max(2, round(workload.input_tokens_mean + workload.output_tokens_mean / 2))
    chunk = max(2, min(round(workload.input_tokens_mean), info.max_num_batched_tokens))
    for num_decodes in DECODES:
        if num_decodes >= info.max_num_seqs:
            break
        batch = BatchFeatures()
        for _ in range(num_decodes):
            batch.add_decode(context_len)
        yield batch.copy()
        batch.add_scheduled(chunk, 0)
        yield batch
    full = BatchFeatures()
    full.add_scheduled(info.max_num_batched_tokens, 0)
    yield full
