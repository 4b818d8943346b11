"""Whole batches under several offline orders, on both kinds of device: how fast they are done, and how much of their
prompts is found in the cache (BlendServe figures 6 and 7)."""

from collections.abc import Mapping, Sequence

from benchmarks.figures.blend_lab import DEVICES, KINDS, BlendLab, BlendRun, Ordering, Work
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result

OVER = "tokens/s over {}"
LENGTH_ERROR = "output_length_error"  # as orders tell it


def throughputs(
    lab: BlendLab, works: Sequence[Work], orderings: Mapping[str, Ordering], base: str, colours: Sequence[str]
) -> Result:
    """A table and a panel for each device. ``orderings``: by name, ``base`` being what the others are compared with, in
    the order of ``colours``, of which the last is the optimum's."""
    tables, panels = [], []
    for device in DEVICES:
        rows: list[Row] = []
        gains: dict[str, list[float]] = {name: [] for name in (*orderings, "optimum")}
        for work in works:
            runs = {name: lab.run(work, ordering, device) for name, ordering in orderings.items()}
            optimum = runs[base].num_tokens / lab.optimum_s(work, device)
            for name, run in runs.items():
                over = run.tokens_per_s / runs[base].tokens_per_s
                gains[name].append(over)
                cells = {f"over {base}": f"{over:.3f}x", "of the optimum": f"{run.tokens_per_s / optimum:.1%}"}
                rows.append({"workload": work.name, "order": name, **_speed(run), **cells, **_cache(run)})
            gains["optimum"].append(optimum / runs[base].tokens_per_s)
        tables.append(Table(f"{lab.where(device, works[0])}.", rows))
        bars = [
            Curve(name, range(len(works)), gains[name], colour) for name, colour in zip(gains, colours, strict=True)
        ]
        names = [work.name for work in works]
        panels.append([Panel(bars, f"a device that {device}", OVER.format(base), names=names)])
    return Result(tables, draw(panels, 5.4))


def sharings(
    lab: BlendLab,
    works: Sequence[Work],
    orderings: Mapping[str, Ordering],
    best: str,
    colours: Sequence[str],
    device: str,
) -> Result:
    """Prompt tokens found in the prefix cache, against what ``best`` finds and a cache without bounds would."""
    rows: list[Row] = []
    shares: dict[str, list[float]] = {name: [] for name in orderings}
    for work in works:
        runs = {name: lab.run(work, ordering, device) for name, ordering in orderings.items()}
        bound = lab.mixture(work).demanded.shared_prompts
        for name, run in runs.items():
            shares[name].append(100 * run.cached_share)
            of_best = run.cached_share / runs[best].cached_share if runs[best].cached_share else 0.0
            found = {"found": run.cached_share, f"of what {best} finds": of_best}
            without = {"of a cache without bounds": run.cached_share / bound if bound else 0.0}
            rows.append({"workload": work.name, "order": name, **formatted(".1%", {**found, **without})})
    bars = [Curve(name, range(len(works)), shares[name], colour) for name, colour in zip(shares, colours, strict=True)]
    panel = Panel(bars, ylabel="prompt tokens from the cache (%)", names=[work.name for work in works])
    return Result([Table(f"{lab.where(device, works[0])}.", rows)], draw([[panel]], 3.0))


def variants(
    lab: BlendLab, work: Work, orderings: Mapping[str, Ordering], base: str, colour: str, device: str
) -> Result:
    """Of one workload: each ordering over ``base``, and how wrong its estimates of output lengths were."""
    runs = {name: lab.run(work, ordering, device) for name, ordering in orderings.items()}
    rows: list[Row] = []
    for name, run in runs.items():
        over = {f"over {base}": f"{run.tokens_per_s / runs[base].tokens_per_s:.3f}x"}
        error = run.details.get(LENGTH_ERROR)
        wrong = {"estimates off by": "" if error is None else f"{error:.0%}"}
        rows.append({"order": name, **_speed(run), **over, **_cache(run), **wrong})
    speeds = [run.tokens_per_s / runs[base].tokens_per_s for run in runs.values()]
    panel = Panel([Curve("", range(len(runs)), speeds, colour)], ylabel=OVER.format(base), names=list(runs))
    return Result([Table(f"Workload {work.name}. {lab.where(device, work)}.", rows)], draw([[panel]], 2.6))


def executors(
    lab: BlendLab,
    work: Work,
    orderings: Mapping[str, Ordering],
    base: str,
    colours: Sequence[str],
    counts: Sequence[int],
    device: str,
) -> Result:
    """The same batch on so many executors."""
    rows: list[Row] = []
    gains: dict[str, list[float]] = {name: [] for name in orderings}
    for count in counts:
        runs = {name: lab.run(work, ordering, device, count) for name, ordering in orderings.items()}
        for name, run in runs.items():
            gains[name].append(run.tokens_per_s / runs[base].tokens_per_s)
            alone = run.tokens_per_s / lab.run(work, orderings[name], device).tokens_per_s
            over = {f"over {base}": f"{gains[name][-1]:.3f}x", "over one executor": f"{alone:.2f}x"}
            rows.append({"executors": str(count), "order": name, **_speed(run), **over, **_cache(run)})
    bars = [Curve(name, range(len(counts)), gains[name], colour) for name, colour in zip(gains, colours, strict=True)]
    panel = Panel(bars, ylabel=OVER.format(base), names=[f"{count} executors" for count in counts])
    return Result([Table(f"Workload {work.name}. {lab.where(device, work)}.", rows)], draw([[panel]], 2.8))


def by_size(
    lab: BlendLab,
    works: Sequence[Work],
    orderings: Mapping[str, Ordering],
    base: str,
    colours: Sequence[str],
    device: str,
) -> Result:
    """The same mixture of fewer and more requests: how much a batch's beginning and its end weigh."""
    rows: list[Row] = []
    gains: dict[str, list[float]] = {name: [] for name in (*orderings, "optimum")}
    for work in works:
        runs = {name: lab.run(work, ordering, device) for name, ordering in orderings.items()}
        optimum_s = lab.optimum_s(work, device)
        for name, run in runs.items():
            gains[name].append(run.tokens_per_s / runs[base].tokens_per_s)
            cells = {f"over {base}": f"{gains[name][-1]:.3f}x", "of the optimum": f"{optimum_s / run.seconds:.1%}"}
            rows.append({"requests": f"{work.size:,}", "order": name, **_speed(run), **cells, **_cache(run)})
        gains["optimum"].append(runs[base].seconds / optimum_s)
    bars = [Curve(name, range(len(works)), gains[name], colour) for name, colour in zip(gains, colours, strict=True)]
    panel = Panel(bars, ylabel=OVER.format(base), names=[f"{work.size:,} requests" for work in works])
    caption = f"Workload {works[0].name}. {lab.where(device, works[0])}, and more."
    return Result([Table(caption, rows)], draw([[panel]], 2.8))


def by_interference(
    lab: BlendLab, work: Work, orderings: Mapping[str, Ordering], base: str, colours: Sequence[str]
) -> Result:
    """What overlapping is worth by how much it is hindered, on all kinds of device."""
    rows: list[Row] = []
    gains: dict[str, list[float]] = {name: [] for name in (*orderings, "optimum")}
    for device in KINDS:
        runs = {name: lab.run(work, ordering, device) for name, ordering in orderings.items()}
        optimum_s = lab.optimum_s(work, device)
        for name, run in runs.items():
            gains[name].append(run.tokens_per_s / runs[base].tokens_per_s)
            cells = {f"over {base}": f"{gains[name][-1]:.3f}x", "of the optimum": f"{optimum_s / run.seconds:.1%}"}
            rows.append({"a device that": device, "order": name, **_speed(run), **cells, **_cache(run)})
        gains["optimum"].append(runs[base].seconds / optimum_s)
    bars = [Curve(name, range(len(KINDS)), gains[name], colour) for name, colour in zip(gains, colours, strict=True)]
    panel = Panel(bars, ylabel=OVER.format(base), names=list(KINDS))
    caption = " ".join(f"{lab.where(device, work)}." for device in KINDS)
    return Result([Table(f"Workload {work.name}. {caption}", rows)], draw([[panel]], 2.8))


def _speed(run: BlendRun) -> Row:
    return formatted(",.0f", {"tokens/s": run.tokens_per_s, "seconds": run.seconds})


def _cache(run: BlendRun) -> Row:
    return {"from the cache": f"{run.cached_share:.1%}", "preemptions": f"{run.preemptions:,}"}
