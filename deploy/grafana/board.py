"""The Grafana dashboard of a stack, made of the rows and panels below.

What gateways count is summed over them; what each of them has heard on the bus is taken once, by ``max by``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39  # of Grafana 11, which later ones read too
WIDTH, PANEL_HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GATEWAYS, EXECUTORS = 'instance=~"$gateway"', 'executor_id=~"$executor"'


@dataclass(frozen=True, slots=True)
class Panel:
    """``queries``: what is asked, by its legend. ``unit``: as Grafana names it. ``is_state``: a number now, not a
    curve."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    stacked: bool = False
    is_state: bool = False


def _quantile(share: float, series: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({series}_bucket{{{GATEWAYS}}}[$__rate_interval])))"


def _mean(series: str) -> str:
    total, count = (f"sum(rate({series}_{what}{{{GATEWAYS}}}[$__rate_interval]))" for what in ("sum", "count"))
    return f"{total} / {count}"


def _rate(series: str, by: str = "") -> str:
    total = f"sum by ({by}) " if by else "sum"
    return f"{total}(rate({series}{{{GATEWAYS}}}[$__rate_interval]))"


def _of_executors(series: str) -> str:
    """A gauge of each, as any gateway has heard it."""
    return f"max by (executor_id) ({series}{{{EXECUTORS}}})"


def _rate_of_executors(series: str) -> str:
    return f"sum(max by (executor_id) (rate({series}{{{EXECUTORS}}}[$__rate_interval])))"


def _share(part: str, whole: str) -> str:
    return f"{_rate_of_executors(part)} / {_rate_of_executors(whole)}"


_CACHED = _rate_of_executors("slackwater_executor_cached_tokens_total")

ROWS: dict[str, tuple[Panel, ...]] = {
    "Online requests": (
        Panel(
            "Time to first token",
            "s",
            {
                "p50": _quantile(0.5, "slackwater_ttft_seconds"),
                "p99": _quantile(0.99, "slackwater_ttft_seconds"),
                "mean": _mean("slackwater_ttft_seconds"),
            },
        ),
        Panel(
            "Time between tokens",
            "s",
            {
                "p50": _quantile(0.5, "slackwater_tbt_seconds"),
                "p99": _quantile(0.99, "slackwater_tbt_seconds"),
                "mean": _mean("slackwater_tbt_seconds"),
            },
        ),
        Panel(
            "Requests under way",
            "short",
            {
                "live": f"sum(slackwater_live_requests{{{GATEWAYS}}})",
                "without a first token": f"sum(slackwater_waiting_requests{{{GATEWAYS}}})",
                "flex": f"sum(slackwater_flex_requests{{{GATEWAYS}}})",
            },
        ),
        Panel(
            "SLOs: measured over bound",
            "percentunit",
            {
                "{{slo}} {{profile_key}}": "max by (slo, profile_key) (slackwater_slo_measured_seconds)"
                " / max by (slo, profile_key) (slackwater_slo_bound_seconds)"
            },
            "At most 1 where the SLO is kept in the last minute.",
        ),
        Panel(
            "Cost of offline work to online tokens",
            "percentunit",
            {"{{executor_id}}": f"{_of_executors('slackwater_executor_online_slowdown')} - 1"},
            "What online tokens took in the last minute over what they take without offline work.",
        ),
        Panel(
            "Requests that went on after a loss",
            "short",
            {
                "online": f"sum(increase(slackwater_resumed_requests_total{{{GATEWAYS}}}[$__rate_interval]))",
                "flex": f"sum(increase(slackwater_flex_resumed_requests_total{{{GATEWAYS}}}[$__rate_interval]))",
            },
        ),
    ),
    "Offline work": (
        Panel(
            "Generated tokens",
            "tokens/s",
            {
                "online": _rate_of_executors("slackwater_executor_online_tokens_total"),
                "offline": _rate_of_executors("slackwater_executor_offline_tokens_total"),
            },
            stacked=True,
        ),
        Panel(
            "Lines of batches",
            "short",
            {"without a result": "max(slackwater_batch_lines_left)"},
            "Of batches that have not ended.",
        ),
        Panel(
            "Results of lines",
            "cps",
            {"{{result}}": "max by (result) (rate(slackwater_batch_lines_total[$__rate_interval]))"},
        ),
        Panel("Batches", "short", {"{{status}}": "max by (status) (slackwater_batches)"}, stacked=True),
        Panel(
            "Latency budget of a step",
            "s",
            {"{{executor_id}}": _of_executors("slackwater_executor_budget_seconds")},
            "With what the executor holds now; none where it is bounded otherwise.",
        ),
        Panel(
            "Requests that lost their KV, or gave way",
            "cps",
            {
                "lost it": _rate_of_executors("slackwater_executor_preemptions_total"),
                "gave way": _rate_of_executors("slackwater_executor_pauses_total"),
            },
        ),
    ),
    "Executors": (
        Panel(
            "Requests on executors",
            "short",
            {
                "{{executor_id}} online": _of_executors("slackwater_executor_online_running"),
                "{{executor_id}} offline": _of_executors("slackwater_executor_offline_running"),
                "{{executor_id}} online, waiting": _of_executors("slackwater_executor_online_waiting"),
            },
        ),
        Panel(
            "KV blocks by owner",
            "short",
            {"{{owner}}": f"sum by (owner) (max by (executor_id, owner) (slackwater_executor_blocks{{{EXECUTORS}}}))"},
            stacked=True,
        ),
        Panel(
            "Busy",
            "percentunit",
            {
                "{{executor_id}}": "max by (executor_id) "
                f"(rate(slackwater_executor_busy_seconds_total{{{EXECUTORS}}}[$__rate_interval]))"
            },
            "Share of the time in which a step runs.",
        ),
        Panel(
            "Prompt tokens that the prefix cache had",
            "percentunit",
            {"share": f"{_CACHED} / ({_CACHED} + {_rate_of_executors('slackwater_executor_prompt_tokens_total')})"},
            "The others were computed.",
        ),
        Panel(
            "Steps without the plan that was due",
            "percentunit",
            {"share": _share("slackwater_executor_steps_local_total", "slackwater_executor_steps_total")},
            "The executor plans by itself then: offline work waits.",
        ),
        Panel(
            "Requests handed over",
            "cps",
            {
                "given": _rate_of_executors("slackwater_executor_handed_over_total"),
                "taken": _rate_of_executors("slackwater_executor_taken_over_total"),
            },
        ),
        Panel(
            "Time for which a request is held to be handed over",
            "s",
            {"mean": _share("slackwater_executor_handover_seconds_total", "slackwater_executor_handed_over_total")},
            "It generates nothing meanwhile.",
        ),
    ),
    "HTTP, bus and services": (
        Panel(
            "Answers",
            "reqps",
            {"{{status}}": _rate("slackwater_http_requests_total", by="status")},
            stacked=True,
        ),
        Panel(
            "Refused",
            "reqps",
            {"{{reason}}": _rate("slackwater_refused_requests_total", by="reason")},
            "Valid requests that were not served.",
            stacked=True,
        ),
        Panel(
            "Messages of the bus that were lost",
            "cps",
            {
                "dropped": _rate("slackwater_messages_dropped_total"),
                "not handled": _rate("slackwater_messages_failed_total"),
                "dropped, executors": _rate_of_executors("slackwater_executor_messages_dropped_total"),
                "not handled, executors": _rate_of_executors("slackwater_executor_messages_failed_total"),
            },
        ),
        Panel(
            "What the bus takes to answer a gateway",
            "s",
            {
                "p50": _quantile(0.5, "slackwater_bus_round_trip_seconds"),
                "p99": _quantile(0.99, "slackwater_bus_round_trip_seconds"),
            },
            "With the wait for the gateway's own turn.",
        ),
        Panel(
            "Services that are well",
            "short",
            {"{{service}}": "min by (service) (slackwater_service_up)"},
            is_state=True,
        ),
        Panel(
            "Restarts in an hour",
            "short",
            {"{{service}}": "max by (service) (increase(slackwater_service_restarts_total[1h]))"},
            is_state=True,
        ),
        Panel(
            "Times that the bus was away", "short", {"{{instance}}": "slackwater_bus_reconnects_total"}, is_state=True
        ),
    ),
}
VARIABLES = (
    ("gateway", "Gateway", "label_values(slackwater_live_requests, instance)"),
    ("executor", "Executor", "label_values(slackwater_executor_num_blocks, executor_id)"),
)


def board() -> dict[str, Any]:
    """As Grafana imports and provisions it."""
    return {
        "uid": "slackwater",
        "title": "Slackwater",
        "tags": ["llm", "slackwater"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), *(_variable(*each) for each in VARIABLES)]},
        "panels": list(_numbered(_placed())),
    }


def _placed() -> Iterator[dict[str, Any]]:
    top = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, top, WIDTH, 1)}
        top += 1
        for number, panel in enumerate(panels):
            column = number % 3
            yield {**_panel(panel), "gridPos": _place(column * (WIDTH // 3), top, WIDTH // 3, PANEL_HEIGHT)}
            top += PANEL_HEIGHT if column == 2 or number == len(panels) - 1 else 0


def _numbered(panels: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, panel in enumerate(panels, 1):
        yield {"id": number, **panel}


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    curve = {"lineWidth": 1, "fillOpacity": 15 if panel.stacked else 0, "showPoints": "never"}
    stacking = {"stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {}
    custom = {} if panel.is_state else {"custom": {**curve, **stacking}}
    return {
        "type": "stat" if panel.is_state else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **custom}, "overrides": []},
        "options": _options(panel),
        "targets": [_target(number, *query) for number, query in enumerate(panel.queries.items())],
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.is_state:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name",
        }
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(number: int, legend: str, expression: str) -> dict[str, Any]:
    return {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": legend}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    several: dict[str, Sequence[str] | str | bool] = {"includeAll": True, "multi": True, "allValue": ".*"}
    asked = {"query": query, "refId": name}
    current = {"selected": True, "text": ["All"], "value": ["$__all"]}
    how = {"refresh": 2, "sort": 1, "current": current, "definition": query}
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": asked, **how, **several}
