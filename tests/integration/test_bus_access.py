"""The bus of a stack of ``slackwater up`` is for its own processes, and for this user."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from services.local.stack.data_dir import DataDir
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.errors import BusError
from tests.integration.conftest import MODEL, LocalStack
from tests.integration.test_local_stack import custom_ids, write_batch

NOBODY = 65534


def seeds(stack: LocalStack) -> list[str]:
    return [path.read_text().strip() for path in (stack.data_dir / "bus").glob("*.nk")]


def test_who_has_no_key_is_not_let_in(sim_stack: LocalStack) -> None:
    url = DataDir(sim_stack.data_dir).read_stack().nats_url
    assert url.startswith("tls://127.0.0.1:")
    ca = str(sim_stack.data_dir / "bus" / "ca.pem")
    with pytest.raises(BusError, match="does not let in"):
        asyncio.run(Bus.connect(BusAddress(url, ca=ca), "stranger", 1.0))
    refused = sim_stack.run("status", "--nats", url, "--data-dir", str(sim_stack.data_dir / "none"))
    assert refused.returncode == 1 and "the stack does not answer" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_gets_neither_keys_nor_the_store(sim_stack: LocalStack) -> None:
    for folder in ("bus", "nats"):
        listed = subprocess.run(["ls", str(sim_stack.data_dir / folder)], user=NOBODY, capture_output=True, text=True)
        assert listed.returncode != 0 and "Permission denied" in listed.stderr


def test_no_key_is_in_arguments_environment_or_logs(sim_stack: LocalStack) -> None:
    sim_stack.wait_healthy()
    secrets = seeds(sim_stack)
    assert len(secrets) == 6
    shown = [(sim_stack.data_dir / "stack.json").read_text()]
    for pid in (*sim_stack.pids().values(), sim_stack.supervisor.pid):
        process = psutil.Process(pid)
        shown += [" ".join(process.cmdline()), *process.environ().values()]
    shown += [log.read_text() for log in (sim_stack.data_dir / "logs").iterdir()]
    assert not any(secret in text for secret in secrets for text in shown)


def test_keys_are_replaced_while_a_stream_and_a_batch_go_on(sim_stack: LocalStack, tmp_path: Path) -> None:
    sim_stack.wait_healthy()
    before, pids = seeds(sim_stack), sim_stack.pids()
    source, output = write_batch(tmp_path / "in.jsonl", 200, max_tokens=20), tmp_path / "out.jsonl"
    submitted = sim_stack.run("batch", "submit", str(source), "--json")
    assert submitted.returncode == 0, submitted.stderr
    batch_id = json.loads(submitted.stdout)["id"]
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 250, "ignore_eos": True, "stream": True}
    texts, rotated = [], False
    with httpx.stream("POST", f"{sim_stack.url}/v1/completions", json=body, timeout=60.0) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                texts.append(json.loads(line.removeprefix("data: "))["choices"][0])
                if len(texts) > 5 and not rotated:
                    done = sim_stack.run("bus", "rotate")
                    assert done.returncode == 0, done.stderr
                    rotated = True
    assert rotated and texts[-1]["finish_reason"] == "length"
    waited = sim_stack.run("batch", "wait", batch_id)
    assert waited.returncode == 0, waited.stderr
    fetched = sim_stack.run("batch", "results", batch_id, "--output", str(output))
    assert fetched.returncode == 0, fetched.stderr
    assert custom_ids(output) == sorted(f"line-{index}" for index in range(200))
    sim_stack.wait_healthy()
    assert sim_stack.pids() == pids and not set(before) & set(seeds(sim_stack))
