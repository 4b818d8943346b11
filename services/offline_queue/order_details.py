"""What the offline order says of what waits, for whoever watches."""

from collections.abc import Mapping

from shared.latency.demand import Demand, DemandModel
from shared.latency.model import LatencyModel
from shared.process.service import Details

TOKENS, READS = "waiting_tokens", "waiting_reads"


def order_details(figures: Mapping[str, float], model: LatencyModel | None) -> Details:
    """``figures``: the order's own (``OfflineOrder.details``). Where it counts the tokens that are to be computed for
    all that waits and the KV tokens that are to be read, ``model`` turns them into milliseconds: rho of the tree's root
    (BlendServe section 3.1), above 1 where what waits is bound by computing."""
    told: Details = dict(figures)
    if model is None or not (figures.get(TOKENS) and figures.get(READS)):
        return told
    device = DemandModel.measured(model)
    demand = Demand(figures[TOKENS] * device.ms_per_token, figures[READS] * device.ms_per_read)
    if demand.memory_ms:
        told["compute_density"] = demand.density
    return told
