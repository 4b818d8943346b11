"""What an order gains over another by compute density and sharing, on both kinds of device (BlendServe figures 9 to
12)."""

from itertools import product
from statistics import fmean

from benchmarks.figures.blend_lab import DEVICES, BlendLab, Chats, Ordering, Work
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from benchmarks.lab.mixture import Recipe
from loadgen.errors import WorkloadError
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW

COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY)  # of sharings, and again from the first


def density_grid(lab: BlendLab, chats: Chats, ordering: Ordering, base: Ordering) -> Result:
    """A table and a panel for each device; a cell is empty where no mixture of these sets is like that."""
    densities, sharings = lab.options.densities, lab.options.sharings
    tables: list[Table] = []
    panels: list[Panel] = []
    for device in DEVICES:
        gains = {
            cell: _gain(lab, Work(chats, Recipe(*cell), lab.options.grid_size), ordering, base, device)
            for cell in product(densities, sharings)
        }
        rows: list[Row] = [
            {
                "density": f"{density:g}",
                **{f"{sharing:.0%} shared": _text(gains[density, sharing]) for sharing in sharings},
            }
            for density in densities
        ]
        made = [gain for gain in gains.values() if gain is not None]
        if not made:
            raise WorkloadError("no mixture of these sets has any of these densities and sharings")
        spread = f"{min(made):.3f}x to {max(made):.3f}x, {fmean(made):.3f}x in the mean"
        work = Work(chats, Recipe(densities[0], sharings[0]), lab.options.grid_size)
        stands = f"In the place of the paper's {chats.stands_for}"
        tables.append(Table(f"Tokens/s over DFS: {spread}. {lab.where(device, work)}. {stands}.", rows))
        curves = []
        for number, sharing in enumerate(sharings):
            points = [(each, gain) for each in densities if (gain := gains[each, sharing]) is not None]
            colour = COLOURS[number % len(COLOURS)]
            curves.append(Curve(f"{sharing:.0%} shared", [x for x, _ in points], [y for _, y in points], colour))
        ylabel = "" if panels else "tokens/s over DFS"
        panels.append(Panel(curves, f"a device that {device}", ylabel, from_zero=False))
    return Result(tables, draw([panels], 3.0, "compute density"))


def _gain(lab: BlendLab, work: Work, ordering: Ordering, base: Ordering, device: str) -> float | None:
    """None where there is no such mixture."""
    try:
        lab.mixture(work)
    except WorkloadError:
        return None
    return lab.run(work, ordering, device).tokens_per_s / lab.run(work, base, device).tokens_per_s


def _text(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.3f}x"
