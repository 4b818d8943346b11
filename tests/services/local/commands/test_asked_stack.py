"""``slackwater status``, ``top`` and ``drain`` of a stack that only its URL and a key name."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

SLACKWATER = (sys.executable, "-c", "from services.local.cli import main; main()")
KEY = "k" * 32


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("asked")) as made:
        made.start_executor("executor-0", "--preset", "sarathi++", "--sim-time-scale", "0.5")
        made.start_gateway("--require-keys", "always", "--api-key", KEY)
        made.wait_ready()
        yield made


def slackwater(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, in a folder without a stack."""
    environ = {**os.environ, "COLUMNS": "250", "SLACKWATER_API_KEY": KEY, **environ}
    return subprocess.run([*SLACKWATER, *args], cwd=folder, env=environ, capture_output=True, text=True)


def test_a_stack_is_shown_and_drained_by_its_url(rig: GatewayRig, tmp_path: Path) -> None:
    shown = json.loads(slackwater(tmp_path, "status", "--json", "--url", rig.url).stdout)
    assert (shown["url"], shown["nats"], shown["model"]) == (rig.url, None, MODEL)
    assert {"executor-0", "gateway"} <= {process["name"] for process in shown["processes"]}
    assert [beat["info"]["executor_id"] for beat in shown["executors"]] == ["executor-0"]

    by_name = slackwater(tmp_path, "status", SLACKWATER_URL=rig.url)
    assert (by_name.returncode, by_name.stdout.startswith(f"{rig.url}  {MODEL}\n")) == (0, True), by_name.stderr
    screen = slackwater(tmp_path, "top", "--once", "--url", rig.url)
    assert (screen.returncode, "executor-0  sim" in screen.stdout, rig.url in screen.stdout) == (0, True, True)

    drained = slackwater(tmp_path, "drain", "executor-0", "--url", rig.url)
    assert (drained.returncode, drained.stdout) == (0, "executor-0 is drained\n"), drained.stderr
    wait_until(lambda: "drains (executor-0)" in rig.http.get("/ready").text, rig.logs())
    undrained = slackwater(tmp_path, "undrain", "executor-0", "--json", "--url", rig.url)
    assert (undrained.returncode, json.loads(undrained.stdout)["draining"]) == (0, False), undrained.stderr


def test_a_drain_by_url_waits_for_what_runs(rig: GatewayRig, tmp_path: Path) -> None:
    wait_until(lambda: rig.http.get("/ready").status_code == 200, rig.logs())
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    with rig.http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        args = ("drain", "executor-0", "--url", rig.url)
        environ = {**os.environ, "SLACKWATER_API_KEY": KEY}
        draining = subprocess.Popen([*SLACKWATER, *args], env=environ, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: "drains (executor-0)" in rig.http.get("/ready").text, rig.logs())
        assert draining.poll() is None
        *_, end, _ = lines
    stdout, _ = draining.communicate(timeout=60)
    assert (end, draining.returncode, stdout) == ("data: [DONE]", 0, "executor-0 is drained\n")


def test_without_the_key_nothing_is_shown_or_drained(rig: GatewayRig, tmp_path: Path) -> None:
    for command in (("status",), ("top", "--once"), ("drain", "executor-0"), ("undrain", "executor-0")):
        refused = slackwater(tmp_path, *command, "--url", rig.url, SLACKWATER_API_KEY="x" * 32)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "error: the API key is not known here\n"


def test_unknown_executors_and_servers_are_named(rig: GatewayRig, tmp_path: Path) -> None:
    for name in ("executor-7", "a.*"):
        unknown = slackwater(tmp_path, "drain", name, "--url", rig.url)
        assert (unknown.returncode, f"no executor {name} answers; registered: executor-0" in unknown.stderr) == (
            1,
            True,
        )
    with_bus = slackwater(tmp_path, "status", "--nats", rig.nats_url, SLACKWATER_URL="http://127.0.0.1:1")
    assert (with_bus.returncode, f"bus {rig.nats_url}" in with_bus.stdout) == (0, True), with_bus.stderr
    nobody = slackwater(tmp_path, "status", "--url", "http://127.0.0.1:1")
    assert (nobody.returncode, nobody.stderr.startswith("error: nothing answers at http://127.0.0.1:1")) == (1, True)
