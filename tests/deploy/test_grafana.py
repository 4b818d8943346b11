"""The Grafana board asks for what there is, and is laid out as one can read it."""

import itertools
import json
import re
from typing import Any

import pytest
import yaml

from deploy.grafana.__main__ import FILE
from deploy.grafana.board import ROWS, VARIABLES, Panel, board
from tests.deploy.test_alerts import LABEL, NAMES, OF_PROMETHEUS, exposed
from tests.deploy.test_deploy import ROOT, services

PROVISIONING = ROOT / "deploy/grafana/provisioning"
PANELS = [panel for panels in ROWS.values() for panel in panels]
ASKED = re.compile(r"\{\{(\w+)\}\}")


def test_the_file_is_made_of_the_board() -> None:
    assert json.loads(FILE.read_text()) == board(), "python -m deploy.grafana"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_asks_for_series_and_labels_that_there_are(panel: Panel) -> None:
    series = exposed()
    for legend, expression in panel.queries.items():
        found = NAMES.findall(expression)
        assert found, expression
        known = set(OF_PROMETHEUS)
        for name, selector in found:
            assert name in series, f"{name} is no series of docs/metrics.md"
            assert set(LABEL.findall(selector)) <= {*series[name].labels, *OF_PROMETHEUS}
            known |= set(series[name].labels)
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        by = {label.strip() for labels in grouped for label in labels.split(",")}
        assert by - {"le"} <= known and set(ASKED.findall(legend)) <= (by or known)
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_variables_ask_for_series_that_there_are() -> None:
    for name, _, query in VARIABLES:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert asked and asked[1] in exposed() and asked[2] in {*exposed()[asked[1]].labels, *OF_PROMETHEUS}
        assert any(f'"${name}"' in query for panel in PANELS for query in panel.queries.values())


def test_panels_have_ids_of_their_own_and_cover_nothing() -> None:
    panels: list[dict[str, Any]] = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells


def test_compose_provisions_it() -> None:
    grafana = services["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    source = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    folder = yaml.safe_load((PROVISIONING / "dashboards/slackwater.yml").read_text())["providers"][0]["options"]["path"]
    assert mounted["./deploy/grafana/dashboards/slackwater.json"] == f"{folder}/slackwater.json"
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/slackwater.json"
