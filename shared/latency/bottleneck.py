"""Whether a batch is bound by computing or by memory, said of any latency model (OOCO sections 3.3.3 and 3.4).

A roofline model says so itself. Any other is asked what decodes cost beside few and beside many, without the KV that
they read: their matrices alone.
"""

import math

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.roofline import NEVER_SATURATED, RooflineLatencyModel

MANY_DECODES = 1 << 14  # beside so many the matrices are bound by computing wherever they ever are
FLAT_SHARE = 0.5  # beside few a decode costs less than this of what it costs beside many, where weights bind


def saturated_batch_size(model: LatencyModel) -> int:
    """bs_sat of Algorithm 1: from so many decodes on, matrices are bound by computing, and a larger batch hardly
    computes a token faster. At least 1; NEVER_SATURATED where decodes cost nothing however many there are.

    Of a model that is asked it is where two lines meet: what few decodes take, which is the reading of the weights, and
    what many take, each its share of the computing. A model that is a line in the number of decodes has no such bend,
    although weights are read: then it is where the decodes together cost as much as what any step takes.
    """
    if isinstance(model, RooflineLatencyModel):
        return model.saturated_batch_size
    many = _decodes(MANY_DECODES)
    beside_few_ms, beside_many_ms = (model.decode_cost_ms(batch, 0) for batch in (_decodes(1), many))
    if beside_many_ms <= 0:
        return NEVER_SATURATED
    any_step_ms = model.predict_ms(_decodes(1)) - beside_few_ms
    if beside_few_ms >= FLAT_SHARE * beside_many_ms:
        return _at_least_one(any_step_ms / beside_many_ms)
    overhead_ms = model.predict_ms(many) - MANY_DECODES * beside_many_ms
    return _at_least_one((any_step_ms - overhead_ms) / (beside_many_ms - beside_few_ms))


def is_compute_bound(model: LatencyModel, features: BatchFeatures) -> bool:
    """Whether the step computes for longer than it reads weights and KV, and than its overhead; False for an empty
    batch.

    Of a model that is asked, KV tokens cost reading. The rest of the step is computing from the saturated batch size
    on, tokens of prompts counted like decodes; below it, only what exceeds a step of one decode, which reads the
    weights.
    """
    if features.is_empty:
        return False
    if isinstance(model, RooflineLatencyModel):
        work = model.work(features)
        return work.compute_bound_ms >= work.memory_bound_ms + work.overhead_ms
    s_p, n_p, _, n_d, pairs = features.sums
    computing_ms = model.predict_ms(BatchFeatures(s_p, n_p, 0, n_d, pairs))
    reading_ms = model.predict_ms(features) - computing_ms
    if s_p + n_d < saturated_batch_size(model):
        weights_ms = model.predict_ms(_decodes(1))
        computing_ms, reading_ms = computing_ms - weights_ms, reading_ms + weights_ms
    return computing_ms >= reading_ms


def _decodes(count: int) -> BatchFeatures:
    """That read no KV."""
    return BatchFeatures(decode_requests=count)


def _at_least_one(size: float) -> int:
    """The first whole batch size from ``size`` on, which is exact to a millionth."""
    return max(1, math.ceil(round(min(size, NEVER_SATURATED), 6)))
