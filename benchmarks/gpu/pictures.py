"""The pictures of a run on a GPU, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.kernels.beside_rivals import Speed
from shared import pictures

if TYPE_CHECKING:  # matplotlib need not be there
    from matplotlib.figure import Figure

IMAGES = Path("images/gpu")
COLOURS = (pictures.BLUE, pictures.ORANGE, pictures.GREEN, pictures.PINK, pictures.SKY)
INCHES_A_PANEL = 2.1


def write(out: Path, name: str, draw: Callable[[], Figure]) -> str:
    """What stands in the page for it: the picture, or why there is none."""
    try:
        figure = draw()
    except ModuleNotFoundError as error:
        return f"No picture: {error.name} is not installed."
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    figure.savefig(out / IMAGES / f"{name}.png", pil_kwargs={"optimize": True})
    return f"![{name.replace('-', ' ').capitalize()}]({IMAGES / name}.png)"


def bars(speeds: Sequence[Speed], unit: str, rate: Callable[[Speed, str], float]) -> Figure:
    """A panel for each model, in it a group for each shape and a bar for whoever attends."""
    from benchmarks.harness.charts import Curve, Panel, draw

    names = list(dict.fromkeys(name for speed in speeds for name in speed.ms))
    panels = []
    for model in dict.fromkeys(speed.model for speed in speeds):
        here = [speed for speed in speeds if speed.model == model]
        curves = []
        for name, colour in zip(names, COLOURS, strict=False):
            points = [(float(x), rate(speed, name)) for x, speed in enumerate(here) if name in speed.ms]
            curves.append(Curve(name, [x for x, _ in points], [y for _, y in points], colour))
        panels.append([Panel(curves, ylabel=f"{model}\n{unit}", names=[speed.shape.name for speed in here])])
    return draw(panels, INCHES_A_PANEL * len(panels) + 0.5)


def lines(points: Mapping[str, Sequence[tuple[int, float]]], title: str) -> Figure:
    """Tokens/s by batch size, a line for each way."""
    from benchmarks.harness.charts import Curve, Panel, draw

    ticks = sorted({batch for line in points.values() for batch, _ in line})
    curves = [
        Curve(name, [batch for batch, _ in line], [per_s for _, per_s in line], colour)
        for (name, line), colour in zip(points.items(), COLOURS, strict=False)
    ]
    return draw([[Panel(curves, title=title, ylabel="tokens/s", ticks=ticks)]], 3.2, "decodes in a step")
