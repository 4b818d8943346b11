"""``slackwater status``, ``top`` and ``drain`` of a stack that only its URL and a key name."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.asked_stack import supervised
from services.local.stack.data_dir import ProcessEntry, StackFile
from shared.watch.stack_status import ProcessStatus
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


def slackwater(*args: str, **environ: str) -> Result:
    """The command, run in this process."""
    return CliRunner(env={"COLUMNS": "250", "SLACKWATER_API_KEY": KEY, **environ}).invoke(app, args)


def test_a_stack_is_shown_and_drained_by_its_url(rig: GatewayRig) -> None:
    shown = json.loads(slackwater("status", "--json", "--url", rig.url).stdout)
    assert (shown["url"], shown["nats"], shown["model"]) == (rig.url, None, MODEL)
    assert {"executor-0", "gateway"} <= {process["name"] for process in shown["processes"]}
    assert [beat["info"]["executor_id"] for beat in shown["executors"]] == ["executor-0"]

    by_name = slackwater("status", SLACKWATER_URL=rig.url)
    assert (by_name.exit_code, by_name.stdout.startswith(f"{rig.url}  {MODEL}\n")) == (0, True), by_name.stderr
    screen = slackwater("top", "--once", "--url", rig.url)
    assert (screen.exit_code, "executor-0  sim" in screen.stdout, rig.url in screen.stdout) == (0, True, True)
    assert " last minute " in screen.stdout, "a gateway listens all the time"

    drained = slackwater("drain", "executor-0", "--url", rig.url)
    assert (drained.exit_code, drained.stdout) == (0, "executor-0 is drained\n"), drained.stderr
    wait_until(lambda: "drains (executor-0)" in rig.http.get("/ready").text, rig.logs)
    undrained = slackwater("undrain", "executor-0", "--json", "--url", rig.url)
    assert (undrained.exit_code, json.loads(undrained.stdout)["draining"]) == (0, False), undrained.stderr


def test_what_the_buss_url_lets_in_with_is_not_shown(rig: GatewayRig) -> None:
    scheme, _, host = rig.nats_url.partition("://")
    for url in (f"{scheme}://bob:hunter2@{host}", f"bob:hunter2@{host}"):
        for args in (("--json",), ()):
            shown = slackwater("status", "--nats", url, *args)
            assert (shown.exit_code, "hunter2" in shown.output) == (0, False), shown.output
            assert host in shown.stdout


def test_another_gateway_is_shown_beside_the_stacks_own() -> None:
    answered = [ProcessStatus("gateway", 7, "ok", None, {}), ProcessStatus("gateway", 9, "drains", None, {})]
    processes = {"gateway": ProcessEntry(9, 2)}
    shown = supervised(answered, StackFile(1, "nats://here", "http://here", "m", "sim", True, processes))
    assert [(each.name, each.pid, each.health, each.restarts) for each in shown] == [
        ("supervisor", 1, "ok", 0),
        ("gateway", 9, "drains", 1),
        ("gateway", 7, "ok", None),
    ]


def test_a_drain_by_url_waits_for_what_runs(rig: GatewayRig) -> None:
    wait_until(lambda: rig.http.get("/ready").status_code == 200, rig.logs)
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    with rig.http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        args = ("drain", "executor-0", "--url", rig.url)
        environ = {**os.environ, "SLACKWATER_API_KEY": KEY}
        draining = subprocess.Popen([*SLACKWATER, *args], env=environ, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: "drains (executor-0)" in rig.http.get("/ready").text, rig.logs)
        assert draining.poll() is None
        *_, end, _ = lines
    stdout, _ = draining.communicate(timeout=60)
    assert (end, draining.returncode, stdout) == ("data: [DONE]", 0, "executor-0 is drained\n")


def test_without_the_key_nothing_is_shown_or_drained(rig: GatewayRig) -> None:
    """And it is said where a command takes it from: nobody sends a header with it."""
    taken = "; a command sends that of SLACKWATER_API_KEY, else of OPENAI_API_KEY\n"
    for command in (("status",), ("top", "--once"), ("drain", "executor-0"), ("undrain", "executor-0"), ("chat", "Hi")):
        refused = slackwater(*command, "--url", rig.url, SLACKWATER_API_KEY="x" * 32)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.strip("\n") == f"error: the API key is not known here{taken}".strip()
    without = slackwater("status", "--url", rig.url, SLACKWATER_API_KEY="", OPENAI_API_KEY="")
    assert (without.exit_code, without.stderr.endswith(f"Authorization: Bearer KEY{taken}")) == (1, True)


def test_unknown_executors_and_servers_are_named(rig: GatewayRig) -> None:
    for name in ("executor-7", "a.*"):
        unknown = slackwater("drain", name, "--url", rig.url)
        said = f"error: no executor {name} answers; registered: executor-0\n"
        assert (unknown.exit_code, unknown.stderr) == (1, said)
    with_bus = slackwater("status", "--nats", rig.nats_url, SLACKWATER_URL="http://127.0.0.1:1")
    assert (with_bus.exit_code, f"bus {rig.nats_url}" in with_bus.stdout) == (0, True), with_bus.stderr
    nobody = slackwater("status", "--url", "http://127.0.0.1:1")
    assert (nobody.exit_code, nobody.stderr.startswith("error: nothing answers at http://127.0.0.1:1")) == (1, True)
