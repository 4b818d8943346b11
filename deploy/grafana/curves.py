"""What a panel of the board shows, asked of a Prometheus: the same queries that Grafana sends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from deploy.grafana.board import VARIABLES, Panel

TIMEOUT_S = 10.0
STEPS_OF_A_RATE = 4  # of a scrape's interval, as Grafana has $__rate_interval


@dataclass(frozen=True, slots=True)
class Curve:
    """``points``: unix seconds, and the value then; what is not a number is left out."""

    legend: str
    points: list[tuple[float, float]]


class Prometheus:
    """``scrape_s``: the interval at which it looks."""

    def __init__(self, url: str, scrape_s: float) -> None:
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._scrape_s = scrape_s

    def curves(self, panel: Panel, from_s: float, to_s: float) -> Iterator[Curve]:
        """Raises httpx.HTTPError where Prometheus does not take a query."""
        for legend, expression in panel.queries.items():
            asked = {"query": self._filled(expression), "start": from_s, "end": to_s, "step": self._scrape_s}
            answer = self._client.get("/api/v1/query_range", params=asked).raise_for_status().json()
            for series in answer["data"]["result"]:
                values = ((float(at), float(value)) for at, value in series["values"])
                points = [(at, value) for at, value in values if math.isfinite(value)]
                yield Curve(_named(legend, series["metric"]), points)

    def _filled(self, expression: str) -> str:
        """With all values of each variable."""
        for name, _, _ in VARIABLES:
            expression = expression.replace(f"${name}", ".*")
        return expression.replace("$__rate_interval", f"{self._scrape_s * STEPS_OF_A_RATE:g}s")


def _named(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend
