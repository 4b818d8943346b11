"""docs/guides/production.md, as it says: the unit's command, a copy of the data folder, nginx in front."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local.stack.machine import free_port
from tests.conftest import wait_for_port
from tests.integration.conftest import MODEL, SLACKWATER, STOP_S, LocalStack
from tests.integration.test_local_stack import custom_ids, write_batch
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

ROOT = Path(__file__).parents[2]
NUM_LINES = 400


def slackwater(*words: str) -> str:
    return subprocess.run([*SLACKWATER, *words], capture_output=True, text=True, check=True, timeout=120).stdout


@contextmanager
def running(folder: Path) -> Iterator[LocalStack]:
    """A stack with the data directory, ended as systemd ends it."""
    stack = LocalStack(folder, "--engine", "sim")
    try:
        stack.start()
        yield stack
        assert stack.stop(signal.SIGTERM) == 0
    finally:
        stack.close()


@pytest.mark.slow  # two stacks, one after the other
def test_a_copy_of_the_store_of_a_running_stack_has_its_batches_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is taken while a batch is at work, with the bus's server held for as long as that takes; what has a
    result by then has it in the copy, and the rest runs there."""
    monkeypatch.setenv("SLACKWATER_SIM_TIME_SCALE", "2")
    file, copied = write_batch(tmp_path / "in.jsonl", NUM_LINES, max_tokens=60), tmp_path / "backup"
    with running(tmp_path / "before") as before:
        batch_id = json.loads(slackwater("batch", "submit", str(file), "--json", "--url", before.url))["id"]
        slackwater("key", "create", "alice", "--data-dir", str(before.data_dir))
        wait_until(lambda: num_done(before, batch_id) > 0, "the batch does not run")
        nats = before.pids()["nats-server"]
        os.kill(nats, signal.SIGSTOP)
        try:
            shutil.copytree(before.data_dir / "nats", copied / "nats")
        finally:
            os.kill(nats, signal.SIGCONT)
        assert num_done(before, batch_id) < NUM_LINES, "the copy was to be of a batch at work"
        wait_until(lambda: num_done(before, batch_id) == NUM_LINES, "the first stack does not go on after the copy")

    monkeypatch.setenv("SLACKWATER_SIM_TIME_SCALE", "0.2")
    with running(copied) as after:
        wait_until(lambda: batch(after, batch_id)["status"] == "completed", after.stderr)
        out = tmp_path / "out.jsonl"
        slackwater("batch", "get", batch_id, "--output", str(out), "--url", after.url)
        assert custom_ids(out) == sorted(f"line-{index}" for index in range(NUM_LINES))
        keys = json.loads(slackwater("key", "list", "--json", "--data-dir", str(copied)))
        assert [each["name"] for each in keys] == ["alice"]


def batch(stack: LocalStack, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{stack.url}/v1/batches/{batch_id}").raise_for_status().json()
    return found


def num_done(stack: LocalStack, batch_id: str) -> int:
    return int(batch(stack, batch_id)["request_counts"]["completed"])


@pytest.mark.slow  # a whole stack
def test_the_units_command_serves_and_ends_as_systemd_ends_it(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "slackwater.toml"
    config.write_text(f'[stack]\nengine = "sim"\nport = {port}\ndata_dir = "{tmp_path / "store"}"\n')
    unit = slackwater("service", "install", "--print", "--config", str(config))
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    program, *words = shlex.split(command)
    assert Path(program).name == "slackwater"
    process = subprocess.Popen([*SLACKWATER, *words], cwd="/", stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and f":{port}" in process.stdout.readline()
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 3}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


@contextmanager
def nginx(folder: Path, gateway_port: int) -> Iterator[str]:
    """Its URL; with deploy/nginx/slackwater.conf, on a port of its own."""
    port = free_port()
    certificate = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), "-subj", "/CN=localhost")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *certificate]
    subprocess.run(make, check=True, capture_output=True)
    server = (ROOT / "deploy/nginx/slackwater.conf").read_text()
    for old, new in {
        "127.0.0.1:8000": f"127.0.0.1:{gateway_port}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/llm.example.crt": str(folder / "cert.pem"),
        "/etc/ssl/llm.example.key": str(folder / "key.pem"),
    }.items():
        assert server.count(old) == 1
        server = server.replace(old, new)
    temporary = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi"))
    temporary += "".join(f"{kind}_temp_path {folder / kind};\n" for kind in ("uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder / 'nginx.pid'}; error_log {folder / 'error.log'};\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n"
    )
    process = subprocess.Popen(["nginx", "-e", str(folder / "error.log"), "-c", str(config)])
    try:
        wait_for_port(port, process)
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_events_come_one_by_one_through_nginx(tmp_path: Path) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_gateway()
        rig.start_executor("executor-0", "--sim-time-scale", "5")
        rig.wait_ready()
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with (
            nginx(tmp_path, rig.port) as port,
            httpx.Client(base_url=f"https://localhost:{port}", verify=False) as http,
        ):
            with http.stream("POST", "/v1/completions", json=body, timeout=60) as answer:
                lines = (line for line in answer.iter_lines() if line)
                assert next(lines).startswith("data: ")
                assert rig.metric("slackwater_live_requests") == 1, "the first event came before the last token"
                assert [*lines][-1] == "data: [DONE]"
            assert http.get("/metrics").status_code == 404
            assert "text/html" in http.get("/").headers["content-type"]
            with http.stream("GET", "/dashboard/events") as events:
                assert next(line for line in events.iter_lines() if line).startswith("data: ")
            lines_of_batch = write_batch(tmp_path / "in.jsonl", 20_000).read_bytes()  # more than nginx takes by itself
            assert len(lines_of_batch) > 2**20
            upload = {"file": ("in.jsonl", lines_of_batch)}
            uploaded = http.post("/v1/files", files=upload, data={"purpose": "batch"}, timeout=60)
            assert uploaded.json()["bytes"] == len(lines_of_batch)
