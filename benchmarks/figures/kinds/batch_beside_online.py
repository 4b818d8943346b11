"""What a batch gets beside online work under a latency budget, by its order."""

from collections.abc import Mapping, Sequence

from benchmarks.figures.blend_lab import DEVICES, BlendLab, Ordering, Work
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result


def batch_beside_online(
    lab: BlendLab, work: Work, orderings: Mapping[str, Ordering], base: str, colours: Sequence[str]
) -> Result:
    """A group of bars for each device."""
    rows: list[Row] = []
    gains: dict[str, list[float]] = {name: [] for name in orderings}
    for device in DEVICES:
        runs = {name: lab.beside(work, ordering, device) for name, ordering in orderings.items()}
        for name, run in runs.items():
            over = run.offline_tokens_per_s / runs[base].offline_tokens_per_s
            gains[name].append(over)
            rows.append(
                {
                    "device": device,
                    "order": name,
                    "offline tokens/s": f"{run.offline_tokens_per_s:,.0f}",
                    f"over {base}": f"{over:.3f}x",
                    "from the cache": f"{run.cached_share:.1%}",
                    "online TTFT p90 ms": "" if run.online.ttft_ms is None else f"{run.online.ttft_ms.p90:,.0f}",
                    "TBT p99 ms": "" if run.online.tbt_ms is None else f"{run.online.tbt_ms.p99:,.0f}",
                }
            )
    options = lab.options
    bars = [Curve(name, range(len(DEVICES)), gains[name], colour) for name, colour in zip(gains, colours, strict=True)]
    panel = Panel(bars, ylabel=f"offline tokens/s over {base}", names=[f"a device that {each}" for each in DEVICES])
    online = f"{options.rate:g} online requests/s until the batch is done, budget {options.budget_ms:g} ms"
    caption = f"{online}. Workload {work.name}. {' '.join(lab.where(each, work) + '.' for each in DEVICES)}"
    return Result([Table(caption, rows)], draw([[panel]], 2.8))
