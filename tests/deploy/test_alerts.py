"""deploy/prometheus/alerts.yml: it is a file of rules, and every series and label in it is there."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.gateway.metrics.series import Series, Type
from services.gateway.metrics_reference import all_series, vllm_series

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"
NAMES = re.compile(r"\b((?:slackwater_|vllm:)\w+|up)\b(?=[\s{\[)]|$)(\{[^}]*\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
OF_PROMETHEUS = {"job", "instance"}

rules: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]


def exposed() -> dict[str, Series]:
    found = {}
    for series in (*(each for group in all_series().values() for each in group), *vllm_series()):
        suffixes = ("_bucket", "_sum", "_count") if series.type is Type.HISTOGRAM else ("",)
        found |= {f"{series.exposed}{suffix}": series for suffix in suffixes}
    return found


@pytest.mark.parametrize("rule", rules, ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_series_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    series, found = exposed(), NAMES.findall(rule["expr"])
    assert found
    known = set(OF_PROMETHEUS)
    for name, selector in found:
        assert name == "up" or name in series, f"{name} is no series of docs/metrics.md"
        own = set(series[name].labels) if name in series else set()
        assert set(LABEL.findall(selector)) <= own | OF_PROMETHEUS
        known |= own
    grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", rule["expr"])
    assert {label.strip() for labels in grouped for label in labels.split(",")} - {"le"} <= known
    text = rule["annotations"]["summary"]
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= known
    assert rule["labels"]["severity"] in ("page", "warn") and rule["alert"].startswith("Slackwater")


def test_a_slow_bus_and_slow_handovers_are_told() -> None:
    asked = {rule["alert"]: {name for name, _ in NAMES.findall(rule["expr"])} for rule in rules}
    assert asked["SlackwaterBusSlow"] == {"slackwater_bus_round_trip_seconds_bucket"}
    assert asked["SlackwaterHandoverSlow"] == {
        "slackwater_executor_handover_seconds_total",
        "slackwater_executor_handed_over_total",
    }
    (buckets,) = {series.buckets for series in all_series()["The gateway"] if series.type is Type.HISTOGRAM}
    (bound,) = (float(rule["expr"].split(">")[-1]) for rule in rules if rule["alert"] == "SlackwaterBusSlow")
    assert bound in buckets, "a quantile is known as well as buckets tell it"


def test_what_to_do_about_each_is_written_down() -> None:
    page = (FOLDER.parents[1] / "docs/guides/production.md").read_text()
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in page] == []


def test_prometheus_reads_them() -> None:
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
    assert len({rule["alert"] for rule in rules}) == len(rules)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_takes_them() -> None:
    for command in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        what, name = command
        checked = subprocess.run(["promtool", "check", what, str(FOLDER / name)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
