"""The paper's claims beside figures that are kept."""

from pathlib import Path

import pytest

from benchmarks.harness.kept import Kept, Place
from benchmarks.harness.origin import Origin
from benchmarks.harness.table import Row
from benchmarks.simulator.bros_claims import main

MINUTES = "python -m benchmarks.figures bros {} --duration {}"


def keep(name: str, rows: list[Row], duration: int = 600) -> None:
    command = MINUTES.format(name, duration)
    origin = Origin(command=command, date="2026-01-02", revision=None, machine=None, seed="seed 7")
    Kept(origin, ["said", *rows]).write(Place("bros", name).file(Path("docs")))


def run(system: str, latency: str, ttft: str, offline: str) -> Row:
    cells = {"dataset": "ShareGPT", "requests/s": "5", "system": system, "normalized latency ms": latency}
    return {**cells, "TTFT attained": ttft, "TPOT attained": "80.0%", "offline requests/s": offline}


SLOW = run("round-robin", "1,000.0", "7.0%", "2.00")


def rows() -> dict[str, str]:
    return {row["claim"]: row["here"] for row in main() if not isinstance(row, str) and isinstance(row, dict)}


def test_reductions_are_means_and_attainment_is_compared_by_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep("overhead", [{"system": "bros", "share of the step": "1.20%"}, {"system": "hygen", "share of the step": "9%"}])
    keep("rates-opt-30b", [run("bros", "50.0", "90.0%", "1.00"), run("fcfs", "100.0", "30.0%", "2.00"), SLOW])
    keep("rates-llama3-70b", [run("bros", "900.0", "50.0%", "3.00"), run("fcfs", "1,000.0", "40.0%", "4.00"), SLOW])
    keep("rates", [run("bros", "1.0", "1.0%", "9.00"), run("fcfs", "9.0", "9.0%", "1.00")], duration=60)
    told = {claim.removeprefix("ShareGPT, 2 runs: "): here for claim, here in rows().items()}
    assert told["less normalized latency than vLLM"] == "30.0%"
    assert told["less offline throughput than vLLM"] == "37.5%"
    assert told["TTFT attained, times that of vLLM"] == "2.00x"
    assert told["TTFT attained, times that of round robin"] == "10.00x"
    assert told["scheduling over step time"] == "1.20% to 1.20%"
    assert not any("LMSYS" in claim for claim in told)
