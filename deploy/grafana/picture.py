"""Draws the board from a Prometheus: ``python -m deploy.grafana.picture --prometheus http://127.0.0.1:9090``.

The panels, queries and units are the board's; how they are drawn is not Grafana's.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from deploy.grafana.board import ROWS, Panel
from deploy.grafana.curves import Prometheus
from shared.pictures import STYLE

COLUMNS = 3
PANEL_INCHES = (5.4, 2.3)
SCALED = {"s": (1000.0, "ms"), "percentunit": (100.0, "%")}
LONGEST = 34  # of a legend


def main(
    prometheus: Annotated[str, typer.Option(help="Its address.")] = "http://127.0.0.1:9090",
    out: Annotated[Path, typer.Option(help="The picture: PNG or SVG.")] = Path("board.png"),
    minutes: Annotated[float, typer.Option(min=0.1, help="Until now.")] = 60.0,
    scrape_s: Annotated[float, typer.Option(min=0.1, help="Its interval, as in deploy/prometheus.")] = 5.0,
) -> None:
    """Ask a Prometheus for all that the Grafana board shows, and draw it."""
    to_s, asked = time.time(), Prometheus(prometheus, scrape_s)
    try:
        draw(asked, to_s - 60 * minutes, to_s, out)
    except httpx.HTTPError as error:
        raise typer.BadParameter(f"{prometheus} does not answer: {error}") from error
    typer.echo(out)


def draw(asked: Prometheus, from_s: float, to_s: float, out: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [panels[i : i + COLUMNS] for panels in ROWS.values() for i in range(0, len(panels), COLUMNS)]
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * len(rows))
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        for panels, places in zip(rows, figure.subplots(len(rows), COLUMNS, squeeze=False), strict=True):
            for place in places[len(panels) :]:
                place.set_axis_off()
            for panel, place in zip(panels, places, strict=False):
                _draw_panel(panel, place, asked, from_s, to_s)
        figure.savefig(out, dpi=80)


def _draw_panel(panel: Panel, place: Any, asked: Prometheus, from_s: float, to_s: float) -> None:
    factor, unit = SCALED.get(panel.unit, (1.0, "" if panel.unit == "short" else panel.unit))
    for curve in asked.curves(panel, from_s, to_s):
        minutes = [(at - to_s) / 60 for at, _ in curve.points]
        label = curve.legend if len(curve.legend) <= LONGEST else curve.legend[: LONGEST - 1] + "…"
        place.plot(minutes, [value * factor for _, value in curve.points], label=label, linewidth=1.2)
    place.set_title(panel.title, fontsize=9, loc="left")
    place.set_ylabel(unit, fontsize=8)
    place.set_xlim((from_s - to_s) / 60, 0)
    place.set_ylim(bottom=0)
    place.tick_params(labelsize=7)
    if place.get_lines():
        place.legend(fontsize=6, loc="upper left", ncols=2)


if __name__ == "__main__":
    typer.run(main)
