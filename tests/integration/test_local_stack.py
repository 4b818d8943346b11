"""``slackwater up`` and the commands that talk to it, on the sim engine."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from services.local.stack.machine import free_port
from tests.integration.conftest import MODEL, STOP_S, LocalStack, is_running
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import READY_S, wait_until

SERVICES = ("nats-server", "predictor", "profiler", "offline-queue", "executor-0", "gateway")
MakeStack = Callable[..., LocalStack]


def write_batch(path: Path, num_lines: int, **fields: object) -> Path:
    """A batch of short completions."""
    lines = (
        {
            "custom_id": f"line-{index}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": MODEL, "prompt": f"The number {index} is", "max_tokens": 4, "ignore_eos": True} | fields,
        }
        for index in range(num_lines)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def custom_ids(output: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in output.read_text().splitlines())


def test_status_names_every_process(sim_stack: LocalStack) -> None:
    status = sim_stack.wait_healthy()
    assert [process["name"] for process in status["processes"]] == ["supervisor", *SERVICES]
    assert status["processes"][0]["pid"] == sim_stack.supervisor.pid
    assert all(is_running(process["pid"]) for process in status["processes"])
    assert (status["url"], status["model"], status["ready"]) == (sim_stack.url, MODEL, True)
    assert [beat["info"]["executor_id"] for beat in status["executors"]] == ["executor-0"]
    assert status["executors"][0]["info"]["spec"]["engine"] == "sim"
    (budget,) = status["budgets"]
    assert (budget["source"], budget["latency_budget_ms"]) == ("tolerance", 0.0)
    assert status["slos"] == []
    assert {"online_waiting", "online_running", "pool_waiting", "pool_running"} <= status["queues"].keys()


def test_a_second_stack_on_its_bus_is_refused(sim_stack: LocalStack, tmp_path: Path) -> None:
    """And the first one's batches go on."""
    bus = ("--nats", sim_stack.status()["nats"], "--nats-creds", str(sim_stack.data_dir / "bus"))
    second = LocalStack(tmp_path, "--engine", "sim", *bus)
    try:
        second.spawn()
        assert second.supervisor.wait(60) == 1
        assert "another stack is on this bus" in second.stderr()
        found = run_slackwater("doctor", "--engine", "sim", "--port", str(free_port()), "--config", "", *bus)
        assert found.returncode == 1 and "another stack is on this bus: predictor" in found.stdout
    finally:
        second.close()
    source, output = write_batch(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    done = sim_stack.run("batch", "submit", str(source), "--wait", "--output", str(output), "--url", sim_stack.url)
    assert done.returncode == 0, done.stderr
    assert custom_ids(output) == sorted(f"line-{index}" for index in range(20))


def test_status_is_readable(sim_stack: LocalStack) -> None:
    shown = sim_stack.run("status")
    assert shown.returncode == 0
    assert sim_stack.url in shown.stdout
    for name in SERVICES:
        assert name in shown.stdout
    assert "budget     online tokens come at most 2% later in the mean (tolerance)" in shown.stdout


def test_chat_answers_once_and_in_a_conversation(sim_stack: LocalStack) -> None:
    cut = "(cut at 8 tokens; --max-tokens allows more)\n"
    once = sim_stack.run("chat", "Hello", "--max-tokens", "8")
    assert (once.returncode, once.stderr) == (0, cut)
    assert once.stdout.strip()
    conversation = sim_stack.run("chat", "--max-tokens", "8", stdin="Hello\nAnd now?\n")
    assert (conversation.returncode, conversation.stderr.replace(cut, "")) == (0, "")
    assert len(conversation.stdout) > 2


def test_a_batch_goes_through(sim_stack: LocalStack, tmp_path: Path) -> None:
    source, output = write_batch(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    done = sim_stack.run("batch", "submit", str(source), "--wait", "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    batch = json.loads(done.stdout)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert custom_ids(output) == sorted(f"line-{index}" for index in range(20))
    listed = json.loads(sim_stack.run("batch", "list", "--json").stdout)["data"]
    assert batch["id"] in [each["id"] for each in listed]
    again = tmp_path / "again.jsonl"
    assert sim_stack.run("batch", "get", batch["id"], "--output", str(again)).returncode == 0
    assert again.read_bytes() == output.read_bytes()


def test_a_batch_of_nonsense_fails_with_its_errors(sim_stack: LocalStack, tmp_path: Path) -> None:
    source = tmp_path / "nonsense.jsonl"
    source.write_text("this is not JSON\n")
    done = sim_stack.run("batch", "submit", str(source), "--wait")
    assert done.returncode == 4
    assert "is failed" in done.stderr and "line 1" in done.stderr


def test_a_batch_whose_lines_all_fail_is_no_success(sim_stack: LocalStack, tmp_path: Path) -> None:
    source, output = write_batch(tmp_path / "in.jsonl", 3, temperature=9), tmp_path / "out.jsonl"
    done = sim_stack.run("batch", "submit", str(source), "--output", str(output))
    assert (done.returncode, "0 of 3 lines are done, 3 failed" in done.stderr) == (3, True), done.stderr
    assert custom_ids(tmp_path / "out.errors.jsonl") == ["line-0", "line-1", "line-2"]
    assert not output.exists()


def test_an_output_that_cannot_be_written_sends_nothing(sim_stack: LocalStack, tmp_path: Path) -> None:
    before = sim_stack.run("batch", "list", "--json").stdout
    refused = sim_stack.run("batch", "submit", __file__, "--output", str(tmp_path / "no" / "such"))
    assert (refused.returncode, "there is no folder" in refused.stderr) == (2, True), refused.stderr
    assert sim_stack.run("batch", "list", "--json").stdout == before


def test_a_second_stack_is_kept_out_of_the_data_directory(sim_stack: LocalStack) -> None:
    second = LocalStack(sim_stack.data_dir)
    refused = second.run("up", "--engine", "sim", "--port", str(second.port))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"another stack (pid {sim_stack.supervisor.pid}) uses {sim_stack.data_dir}" in refused.stderr


def test_a_taken_port_is_refused(sim_stack: LocalStack, tmp_path: Path) -> None:
    refused = sim_stack.run("up", "--port", str(sim_stack.port), "--data-dir", str(tmp_path / "other"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"port {sim_stack.port}" in refused.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_service_comes_back(sim_stack: LocalStack, name: str, tmp_path: Path) -> None:
    before = sim_stack.pids()
    os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: sim_stack.pids().get(name, before[name]) != before[name], what=sim_stack.stderr)
    status = sim_stack.wait_healthy()
    restarted = {process["name"]: process["restarts"] for process in status["processes"]}
    assert restarted[name] >= 1
    others = [other for other in SERVICES if other != name]
    assert {other: sim_stack.pids()[other] for other in others} == {other: before[other] for other in others}
    assert f"{name} ended by itself (signal SIGKILL)" in sim_stack.stderr()
    answered = sim_stack.run("chat", "Hello", "--max-tokens", "4")
    assert answered.returncode == 0, answered.stderr
    source = write_batch(tmp_path / "in.jsonl", 3)
    done = sim_stack.run("batch", "submit", str(source), "--wait", "--output", str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    assert custom_ids(tmp_path / "out.jsonl") == ["line-0", "line-1", "line-2"]


@pytest.mark.slow
def test_two_stacks_run_side_by_side_and_leave_nothing_behind(sim_stack: LocalStack, make_stack: MakeStack) -> None:
    second = make_stack("--engine", "sim", "--executors", "2", "--preset", "online-only")
    assert second.start() == f"ready {second.url} model {MODEL}"
    status = second.wait_healthy()
    assert [beat["info"]["executor_id"] for beat in status["executors"]] == ["executor-0", "executor-1"]
    assert not set(second.pids().values()) & set(sim_stack.pids().values())
    for stack in (sim_stack, second):
        answered = stack.run("chat", "Hello", "--max-tokens", "4")
        assert answered.returncode == 0, answered.stderr

    pids = second.pids().values()
    assert second.stop(signal.SIGINT) == 0
    assert not [pid for pid in pids if is_running(pid)]
    assert not (second.data_dir / "stack.json").exists()
    assert second.run("status").returncode == 1
    assert sim_stack.run("chat", "Hello", "--max-tokens", "4").returncode == 0


@pytest.mark.slow
def test_what_a_stack_stored_is_there_the_next_time(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack("--engine", "sim")
    stack.start()
    source = write_batch(tmp_path / "in.jsonl", 3)
    batch = json.loads(stack.run("batch", "submit", str(source), "--wait", "--json").stdout)
    pids = stack.pids().values()
    stack.supervisor.kill()
    stack.supervisor.wait()
    wait_until(lambda: not any(is_running(pid) for pid in pids), what=lambda: "a process outlived its supervisor")
    assert "is gone" in stack.run("status").stderr

    stack.start()
    output = tmp_path / "out.jsonl"
    assert stack.run("batch", "get", batch["id"], "--output", str(output)).returncode == 0
    assert custom_ids(output) == ["line-0", "line-1", "line-2"]
    assert stack.stop(signal.SIGTERM) == 0


def test_a_stack_that_is_still_starting_can_be_stopped(make_stack: MakeStack) -> None:
    stack = make_stack("--engine", "sim")
    stack.spawn()
    wait_until(lambda: (stack.data_dir / "stack.json").exists(), what=stack.stderr)
    pids = stack.pids().values()
    assert stack.stop(signal.SIGINT) == 0
    assert not [pid for pid in pids if is_running(pid)]


def interrupt_until_it_kills(stack: LocalStack) -> None:
    """Ctrl-C again and again, until the supervisor says that it kills what is left."""

    def killing() -> bool:
        if "killing what is left" in stack.stderr():
            return True
        stack.supervisor.send_signal(signal.SIGINT)
        return False

    wait_until(killing, what=stack.stderr)


@pytest.mark.slow
def test_a_hung_service_does_not_hold_up_a_second_request_to_stop(make_stack: MakeStack) -> None:
    stack = make_stack("--engine", "sim")
    stack.start()
    pids = stack.pids()
    os.kill(pids["gateway"], signal.SIGSTOP)
    interrupt_until_it_kills(stack)
    assert stack.supervisor.wait() == 130
    assert not [pid for pid in pids.values() if is_running(pid)]


@pytest.mark.slow
def test_what_is_killed_while_a_stack_gives_up_its_start_is_not_started_again(make_stack: MakeStack) -> None:
    """Its start waits for a bus that hangs when it is told to end."""
    stack = make_stack("--engine", "sim")
    stack.spawn()
    wait_until(lambda: (stack.data_dir / "stack.json").exists() and "gateway" in stack.pids(), what=stack.stderr)
    pids = stack.pids()
    os.kill(pids["nats-server"], signal.SIGSTOP)
    interrupt_until_it_kills(stack)
    assert stack.supervisor.wait(STOP_S) == 130
    assert "again" not in stack.stderr()
    assert not [pid for pid in pids.values() if is_running(pid)]


@pytest.mark.slow
def test_a_stream_finishes_while_the_stack_stops_though_nobody_reads_its_output(make_stack: MakeStack) -> None:
    """As Ctrl-C does to ``slackwater up 2>&1 | tee log``: tee is gone at once."""
    stack = make_stack("--engine", "sim")
    stack.spawn(stderr=subprocess.STDOUT)
    assert stack.supervisor.stdout is not None
    assert any(line.startswith("ready ") for line in stack.supervisor.stdout)
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        stack.supervisor.stdout.close()
        stack.supervisor.send_signal(signal.SIGINT)
        assert "data: [DONE]" in lines
    assert stack.supervisor.wait(STOP_S) == 0


@pytest.mark.slow
def test_a_stack_starts_though_nobody_reads_that_it_is_ready(make_stack: MakeStack) -> None:
    """As with ``slackwater up 2>&1 | head -1``."""
    stack = make_stack("--engine", "sim")
    stack.spawn(stderr=subprocess.STDOUT)
    assert stack.supervisor.stdout is not None
    assert stack.supervisor.stdout.readline() == "starting the bus\n"
    stack.supervisor.stdout.close()
    said = stack.data_dir / "stack.json"
    wait_until(lambda: said.exists() and '"ready": true' in said.read_text(), "it is ready", READY_S)
    stack.wait_healthy()
    stack.supervisor.send_signal(signal.SIGINT)
    assert stack.supervisor.wait(STOP_S) == 0
