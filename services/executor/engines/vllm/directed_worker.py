"""Imported by each of vLLM's workers in processes of their own, before it loads a model that has our attention."""

# The host pool has torch's thread count by its import, before vLLM replaces that.
from services.executor.engines.torch import host_pool  # noqa: F401
from services.executor.engines.vllm.attention import register_directed
from services.executor.engines.vllm.bare_weights import KnowsBareWeights

register_directed()


class DirectedWorker(KnowsBareWeights):
    """Each worker imports this module to find it, and has our attention by that."""
