"""Runs side by side, in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

COMMAND = (sys.executable, "-m", "tests.simulation", "--run-hours", "0.03", "--no-progress")


def _run(*options: str) -> str:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.slow
def test_runs_side_by_side_are_those_of_one_after_the_other_and_are_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    _run("--seeds", "1", "--seed", "41", "--out", str(path))
    said = _run("--seeds", "3", "--seed", "40", "--jobs", "2", "--out", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["order"]["seed"] for line in lines) == [40, 41, 42]
    assert lines[0]["order"]["seed"] == 41
    assert "in 3 runs" in said and "no seed is wrong" in said
    digests = {line["order"]["seed"]: line["digest"] for line in lines}
    alone = tmp_path / "alone"
    _run("--seeds", "1", "--seed", "42", "--out", str(alone))
    assert json.loads(alone.read_text())["digest"] == digests[42]
    again = _run("--seeds", "3", "--seed", "40", "--out", str(path))
    assert len(path.read_text().splitlines()) == 3 and "in 3 runs" in again


@pytest.mark.slow
def test_who_interrupts_it_is_told_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    command = [*COMMAND, "--seeds", "1000", "--seed", "50", "--jobs", "2", "--out", str(path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    while not path.exists():
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in said and "no seed is wrong" in said
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_of_a_process_that_is_killed_the_seed_is_told_and_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    command = [*COMMAND, "--seeds", "1000", "--seed", "50", "--out", str(path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not path.exists():
        assert running.poll() is None
        time.sleep(0.1)
    simulating = [each for each in psutil.Process(running.pid).children() if "spawn_main" in each.cmdline()[-2]]
    simulating[0].kill()
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert re.search(r"the process that was to simulate seed \d+ has ended \(-9\)", said)
    assert f"in {len(path.read_text().splitlines())} runs" in said
