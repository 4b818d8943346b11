"""Greedy tokens of the torch engine beside transformers."""

from benchmarks.engine.parity import parity
from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.models import prepared_model


def stage(context: Context) -> Found:
    is_tiny = context.device == "cpu" and context.model is None
    prepared = None if is_tiny else prepared_model(context)
    return (yield from parity(context.device, dict([prepared] if prepared else []), is_tiny))
