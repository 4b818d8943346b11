"""What batches reach of a device by how much they compute for each byte that they move, and how long they take (OOCO
figure 3)."""

from collections.abc import Iterable, Sequence

from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from shared.latency.features import BatchFeatures
from shared.latency.operators import BatchWork
from shared.latency.roofline import RooflineLatencyModel
from shared.pictures import BLUE, GREEN, GREY, ORANGE, SKY

DECODE_COLOURS = (SKY, GREEN, ORANGE)
Line = tuple[str, str, list[tuple[int, BatchFeatures]]]  # name, colour, batches by their tokens


def rooflines(
    model: RooflineLatencyModel,
    lengths: Sequence[int],
    counts: Sequence[int],
    contexts: Sequence[int],
    num_slots: int,
    where: str,
) -> Result:
    """A prompt of each of ``lengths``; decodes of each of ``counts``, each reading each of ``contexts`` tokens, as far
    as they have room in ``num_slots`` KV slots. ``contexts``: at most three."""
    lines: list[Line] = [("prefill", BLUE, [(length, _prefill(length)) for length in lengths])]
    for context, colour in zip(contexts, DECODE_COLOURS, strict=False):
        fitting = [(count, _decodes(count, context)) for count in counts if count * context <= num_slots]
        lines.append((f"decode {context:,}", colour, fitting))
    works = [(name, colour, [(tokens, model.work(batch)) for tokens, batch in line]) for name, colour, line in lines]
    rows = [_row(name, tokens, work) for name, _, line in works for tokens, work in line]
    reached = [
        Curve(name, [_intensity(work) for _, work in line], [_tflops(work) for _, work in line], colour)
        for name, colour, line in works
    ]
    roof = _roof(model, [x for curve in reached for x in curve.xs])
    times = [
        Curve(name, [tokens for tokens, _ in line], [work.latency_ms for _, work in line], colour)
        for name, colour, line in works
    ]
    panels = [
        Panel([*reached, roof], "TFLOP/s by FLOPs for each byte", is_log=True),
        Panel(times, "ms by tokens of a step", is_log=True),
    ]
    caption = (
        "A prompt of so many tokens, or so many decodes, each of which reads as many tokens as stands beside them; of "
        f"the whole step, overhead included. Saturated from {model.saturated_batch_size:,} decodes on. {where}."
    )
    return Result([Table(caption, rows)], draw([panels], 3.4))


def _prefill(length: int) -> BatchFeatures:
    features = BatchFeatures()
    features.add_prefill(length, 0)
    return features


def _decodes(count: int, context: int) -> BatchFeatures:
    features = BatchFeatures()
    features.add_decodes([context] * count)
    return features


def _intensity(work: BatchWork) -> float:
    """FLOPs for each byte."""
    return work.flops / work.memory_bytes


def _tflops(work: BatchWork) -> float:
    """Reached, in TFLOP/s."""
    return work.flops / work.latency_ms / 1e9


def _roof(model: RooflineLatencyModel, intensities: Iterable[float]) -> Curve:
    """What GEMMs can reach."""
    rates, xs = model.rates, sorted(intensities)
    ridge = rates.gemm_flops_per_ms / rates.gemm_bytes_per_ms
    corners = [xs[0], *([ridge] if xs[0] < ridge < xs[-1] else []), xs[-1]]
    heights = [min(rates.gemm_flops_per_ms, rates.gemm_bytes_per_ms * x) / 1e9 for x in corners]
    return Curve("roof", corners, heights, GREY, "--")


def _row(name: str, tokens: int, work: BatchWork) -> Row:
    return {
        "batch": name,
        "tokens": f"{tokens:,}",
        "FLOPs/byte": f"{_intensity(work):,.1f}",
        "TFLOP/s": f"{_tflops(work):,.3g}",
        "ms": f"{work.latency_ms:,.1f}",
        "GEMMs bound by": work.gemm.bottleneck,
        "step bound by": work.bottleneck,
    }
