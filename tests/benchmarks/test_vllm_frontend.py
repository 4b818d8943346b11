"""The front end beside vLLM's: the small model, and one server measured."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.vllm.frontend import INSTANT, ROLES, SYSTEMS, measure, small_model
from benchmarks.vllm.workload import Setting

NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["slackwater-sim", *(pytest.param(name, marks=NEEDS_VLLM) for name in ("vllm", "slackwater-vllm"))]
)
async def test_a_server_is_measured(
    name: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_SIM_TIME_SCALE", INSTANT)
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))  # where profiles go
    folder = tmp_path / "small"
    folder.mkdir()
    small_model(model_folder, folder)
    (system,) = (system for system in SYSTEMS if system.name == name)
    setting = Setting(online="", offline="", model=str(folder), max_num_seqs=8, max_num_batched_tokens=256)
    ttft_ms, rows = await measure(system, setting, folder, [2], max_tokens=600, rounds=3, turns=1)
    assert len(ttft_ms) == 3
    assert 0.0 < ttft_ms[0] <= ttft_ms[-1]
    ((streams, server, tokens_per_s, tokens_per_event, *cpu_us, all_us),) = (row.values() for row in rows)
    assert (streams, server) == ("2", name)
    assert float(tokens_per_s.replace(",", "")) > 0.0
    assert float(tokens_per_event) >= 1.0
    by_role = dict(zip(ROLES, map(float, cpu_us), strict=True))
    assert by_role["HTTP"] > 0.0
    assert by_role["engine"] > 0.0
    assert (by_role["bus"] > 0.0) == name.startswith("slackwater")
    assert abs(sum(by_role.values()) - float(all_us)) <= len(ROLES)
