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
OF_PROMETHEUS = {"job", "instance", "namespace"}  # the last where its operator has found the target
DOCS = FOLDER.parents[1] / "docs"
# Reasons of refusals for which a client's key, its own quotas or what it sends is to blame.
OWN_LIMITS = {
    *("key", "key_expired", "permission", "host", "origin", "rate_limit_requests", "rate_limit_tokens"),
    *("tokens_per_day", "tokens_per_month", "stored_bytes", "open_batches", "queued_tokens"),
}

# Whichever stack it is of: one that is not well is enough, and the largest of all is above the bound.
ONE_IS_ENOUGH = {
    *("SlackwaterGatewayDown", "SlackwaterServiceUnwell", "SlackwaterRestarts", "SlackwaterRefuses"),
    *("SlackwaterBatchFailed", "SlackwaterBusAway", "SlackwaterBusSlow", "SlackwaterHandoverSlow"),
}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")

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


def test_messages_are_lost_by_executors_too() -> None:
    (rule,) = (rule for rule in rules if rule["alert"] == "SlackwaterMessagesLost")
    whose = ("slackwater_messages", "slackwater_executor_messages")
    assert {name for name, _ in NAMES.findall(rule["expr"])} == {
        f"{each}_{what}_total" for each in whose for what in ("dropped", "failed")
    }
    assert {"executor_id", "instance"} <= set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))


def test_what_clients_are_to_blame_for_is_no_alert() -> None:
    by_name = {rule["alert"]: rule["expr"] for rule in rules}
    (told,) = re.findall(r'reason=~"([^"]*)"', by_name["SlackwaterRefuses"])
    page = (DOCS / "gateway.md").read_text()
    listed = page.split("`slackwater_refused_requests_total`\nwhy: ")[1].split("(of dashboards)")[0]
    reasons = {*re.findall(r"`(\w+)`", listed)}
    assert {*told.split("|")} == reasons - OWN_LIMITS and reasons >= OWN_LIMITS
    assert re.findall(r'status="(\w+)"', by_name["SlackwaterBatchFailed"]) == ["expired"], "one may fail by its file"
    assert re.findall(r'status="(\w+)"', by_name["SlackwaterServerErrors"]) == ["500"]


def test_one_that_counts_tells_of_as_many_as_it_says() -> None:
    """increase() has up to a tenth more than was counted, and never less."""
    for name, minutes in (("SlackwaterRestarts", "15"), ("SlackwaterBusAway", "ten")):
        (rule,) = (rule for rule in rules if rule["alert"] == name)
        bound, text = float(rule["expr"].split(">")[-1]), rule["annotations"]["summary"]
        assert 2 * 1.1 < bound < 3 and text.endswith(f" three times or more within {minutes} minutes")
        assert f"[{minutes.replace('ten', '10')}m]" in rule["expr"] and "for" not in rule


def test_half_an_hour_is_half_an_hour() -> None:
    """A result counts for as long as the range has it: the range is short, so that it adds little to "for"."""
    (rule,) = (rule for rule in rules if "half an hour" in rule["annotations"]["summary"])
    assert rule["for"] == "30m" and re.findall(r"\[(\d+)m\]", rule["expr"]) == ["5"]


def test_an_slo_is_broken_only_while_it_is_measured() -> None:
    """The series ends without requests, and a mean over ten minutes goes on for as long."""
    (rule,) = (rule for rule in rules if rule["alert"] == "SlackwaterSloBroken")
    over_time, now = rule["expr"].split(" and ")
    assert "avg_over_time(slackwater_slo_kept[10m])" in over_time and over_time.endswith("< 0.9")
    assert now == "max by (namespace, profile_key, slo) (slackwater_slo_kept) >= 0"


def test_a_model_without_executors_is_told_whatever_the_others_have() -> None:
    """A gateway that is down tells of none, and does not mean that executors are."""
    (rule,) = (rule for rule in rules if rule["alert"] == "SlackwaterNoExecutor")
    assert rule["expr"] == "max by (namespace, model_name) (slackwater_model_executors) == 0"
    assert "{{ $labels.model_name }}" in rule["annotations"]["summary"]


def test_an_executor_that_is_gone_is_told_while_others_go_on() -> None:
    """A gateway whose bus is away hears none, and a model without any is told by itself."""
    (rule,) = (rule for rule in rules if rule["alert"] == "SlackwaterExecutorGone")
    gone, others = rule["expr"].split(" and on (namespace) ")
    assert gone == "max by (namespace, executor_id) (slackwater_executor_up) == 0"
    assert others == "max by (namespace) (slackwater_model_executors) > 0"
    (series,) = (each for each in all_series()["Executors"] if each.exposed == "slackwater_executor_up")
    assert "an hour" in series.meaning and rule["for"] == "10m", "it is over by itself when the executor is forgotten"


def test_a_stack_that_is_well_hides_no_other_of_the_cluster() -> None:
    """What is the largest or the sum of all gateways is that of one namespace's."""
    for rule in rules:
        joined = re.findall(r"\b(?:max|sum)(?: by \(([^)]*)\))? \(", rule["expr"].replace("max(", "max ("))
        is_of_all = {"namespace" in labels.split(", ") for labels in joined} - {True}
        assert not is_of_all or rule["alert"] in ONE_IS_ENOUGH, rule["alert"]


def test_what_to_do_about_each_is_written_down() -> None:
    page = (DOCS / "guides/production.md").read_text()
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in page] == []


def test_prometheus_reads_them() -> None:
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
    assert len({rule["alert"] for rule in rules}) == len(rules)


def test_no_gateway_at_all_is_told() -> None:
    (rule,) = (rule for rule in rules if rule["alert"] == "SlackwaterGatewayDown")
    assert rule["expr"].endswith(' or absent(up{job="slackwater-gateway"})')


@needs_promtool
@pytest.mark.parametrize(
    ("targets", "summaries"),
    [
        ({"a": 1, "b": 1}, []),
        ({"a": 1, "b": 0}, ["The gateway b does not answer"]),
        ({}, ["There is no gateway"]),
    ],
)
def test_a_gateway_that_is_away_is_told_by_name(targets: dict[str, int], summaries: list[str], tmp_path: Path) -> None:
    told = [
        {
            "exp_labels": {"severity": "page", "job": "slackwater-gateway"} | ({"instance": "b"} if targets else {}),
            "exp_annotations": {"summary": summary},
        }
        for summary in summaries
    ]
    series = [
        {"series": f'up{{job="slackwater-gateway",instance="{name}"}}', "values": f"{up}x40"}
        for name, up in targets.items()
    ]
    asked = {"eval_time": "5m", "alertname": "SlackwaterGatewayDown", "exp_alerts": told}
    test = {"interval": "15s", "input_series": series, "alert_rule_test": [asked]}
    given = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(given))
    tested = subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
def test_promtool_takes_them() -> None:
    for command in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        what, name = command
        checked = subprocess.run(["promtool", "check", what, str(FOLDER / name)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
