"""A real Prometheus looks at a real stack: it takes every query of the board and every alert, and has an answer."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.grafana.board import ROWS, Panel
from deploy.grafana.curves import Prometheus
from deploy.grafana.picture import draw
from services.local.stack.machine import free_port
from tests.deploy.test_alerts import FOLDER, rules
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not here")

SCRAPE_S = 1.0
PANELS = [panel for panels in ROWS.values() for panel in panels]
# No request moves, nothing is refused, no batch is there and no SLO is set.
EMPTY = {
    *("SLOs: measured over bound", "Cost of offline work to online tokens", "Results of lines", "Batches", "Refused"),
    *("Requests handed over", "Time for which a request is held to be handed over", "Latency budget of a step"),
}


@dataclass
class Watched:
    url: str
    began_s: float


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    with GatewayRig(tmp_path_factory.mktemp("stack")) as rig:
        rig.start_executor("executor-0", "--sim-time-scale", "0.1")
        rig.start_offline_queue()
        rig.start_gateway()
        rig.wait_ready()
        port = free_port()
        process = _start(folder, port, rig.port)
        try:
            url, began_s = f"http://127.0.0.1:{port}", time.time()
            wait_until(lambda: _answers(url), "prometheus does not answer", 30)
            until_s = time.time() + 12 * SCRAPE_S
            while time.time() < until_s:
                rig.complete(max_tokens=20)
            yield Watched(url, began_s)
        finally:
            process.kill()
            process.wait()


def _start(folder: Path, port: int, gateway_port: int) -> "subprocess.Popen[bytes]":
    """As it is shipped, but for where the gateway is and how often it looks."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": f"{SCRAPE_S:g}s", "evaluation_interval": f"{SCRAPE_S:g}s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{gateway_port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "alerts.yml", folder)
    options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(("prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"), stderr=log)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_has_curves(watched: Watched, panel: Panel) -> None:
    curves = [*Prometheus(watched.url, SCRAPE_S).curves(panel, watched.began_s, time.time())]
    assert any(curve.points for curve in curves) or panel.title in EMPTY
    assert not [curve.legend for curve in curves if "{{" in curve.legend], "a label that the series lacks"


def test_curves_are_what_users_got(watched: Watched) -> None:
    (ttft,) = (panel for panel in PANELS if panel.title == "Time to first token")
    curves = [*Prometheus(watched.url, SCRAPE_S).curves(ttft, watched.began_s, time.time())]
    assert {curve.legend for curve in curves if curve.points} == {"p50", "p99", "mean"}
    assert all(0 < value < 60 for curve in curves for _, value in curve.points)


def test_alerts_are_looked_at_and_none_fires_where_all_is_well(watched: Watched) -> None:
    def known() -> dict[str, dict[str, str]]:
        groups = httpx.get(f"{watched.url}/api/v1/rules", trust_env=False).json()["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    wait_until(lambda: all(rule["health"] == "ok" for rule in known().values()), lambda: str(known()), 30)
    assert set(known()) == {rule["alert"] for rule in rules}
    assert {rule["name"] for rule in known().values() if rule["state"] == "firing"} == set()


def test_the_board_is_drawn(watched: Watched, tmp_path: Path) -> None:
    draw(Prometheus(watched.url, SCRAPE_S), watched.began_s, time.time(), tmp_path / "board.png")
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
