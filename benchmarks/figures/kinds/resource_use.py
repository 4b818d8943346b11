"""What steps compute and read over a run, in milliseconds of the device's computing and of its memory (BlendServe
figure 8)."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from benchmarks.figures.blend_lab import BlendLab, Ordering, Work
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result
from shared.latency.demand import DemandModel
from shared.latency.features import BatchFeatures
from shared.pictures import BLUE, ORANGE

PARTS = 200  # of a run, each the mean of its steps


def resource_use(lab: BlendLab, work: Work, orderings: Mapping[str, Ordering], device: str) -> Result:
    """A panel for each ordering."""
    rows, panels = [], []
    model = lab.demand_model()
    for name, ordering in orderings.items():
        shapes = lab.run(work, ordering, device).shapes
        each = max(1, len(shapes) // PARTS)
        starts = range(0, len(shapes), each)
        used = [_used(shapes[start : start + each], model) for start in starts]
        compute, memory = [ms for ms, _ in used], [ms for _, ms in used]
        curves = [Curve("compute", starts, compute, BLUE, "-"), Curve("memory", starts, memory, ORANGE, "-")]
        panels.append([Panel(curves, title=name, ylabel="ms a step")])
        rows.append({"order": name, "steps": f"{len(shapes):,}", **_cells(compute, memory)})
    caption = f"Means of {PARTS} parts of each run. Workload {work.name}. {lab.where(device, work)}."
    return Result([Table(caption, rows)], draw(panels, 0.8 + 1.9 * len(panels), "steps"))


def _used(shapes: Sequence[BatchFeatures], model: DemandModel) -> tuple[float, float]:
    """Of computing and of memory, in the mean of these steps."""
    compute_ms = memory_ms = 0.0
    for shape in shapes:
        compute_ms += (shape.prefill_tokens + shape.decode_requests) * model.ms_per_token
        compute_ms += shape.decode_requests * model.ms_per_output + shape.prefill_pairs * model.ms_per_pair
        memory_ms += shape.decode_kv_tokens * model.ms_per_read
    return compute_ms / len(shapes), memory_ms / len(shapes)


def _cells(compute: Sequence[float], memory: Sequence[float]) -> Row:
    """Balanced is a part whose resources differ by less than the factor of 2 within which overlapping pays most."""
    balanced = sum(min(pair) * 2 >= max(pair) for pair in zip(compute, memory, strict=True)) / len(compute)
    means = {"compute ms, mean": fmean(compute), "deviation": pstdev(compute)}
    reads = {"memory ms, mean": fmean(memory), "deviation of it": pstdev(memory)}
    return {**formatted(".1f", means | reads), "balanced within 2x": f"{balanced:.0%}"}
