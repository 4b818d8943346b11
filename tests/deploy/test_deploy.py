"""docker-compose.yml and deploy/ against the compose specification and against the code.

The schema is that of github.com/compose-spec/compose-spec (Apache-2.0) as check-jsonschema ships it.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from services.executor.prepare_model import DEFAULT_MODEL
from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.local.cli import app
from services.local.stack.service_commands import MAX_PAYLOAD, SYNC_INTERVAL
from services.offline_queue.settings import OfflineQueueSettings
from services.predictor.settings import PredictorSettings
from services.profiler.settings import ProfilerSettings
from shared.settings.config import Sources, composed
from shared.settings.setting import settings_of
from tests.conftest import nats_server_binary

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "gateway": GatewaySettings,
    "offline-queue": OfflineQueueSettings,
    "predictor": PredictorSettings,
    "profiler": ProfilerSettings,
    "executor": ExecutorSettings,
}
PROCESS_VARIABLES = {
    "SLACKWATER_CACHE",
    "SLACKWATER_NATS",
    "SLACKWATER_NATS_CREDS",
}  # read by more than settings: the cache, the health check
BUS_FOLDER = "/etc/slackwater/bus"
OF_COMPOSE = ("nats", "nats_creds", "host", "allowed_hosts", "model_path")  # other than a machine's own
WITHOUT_TORCH = ("gateway", "offline-queue", "predictor", "profiler", "loadgen")
INTERPOLATION = re.compile(r"\$\{(\w+):-([^}]*)\}")

compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
services: dict[str, dict[str, Any]] = compose["services"]
dockerfiles = {path.name.partition(".")[2]: path.read_text() for path in ROOT.glob("deploy/Dockerfile.*")}


def defaults(value: str) -> str:
    """What compose makes of it where no variable is set."""
    return INTERPOLATION.sub(lambda match: match[2], value)


def instructions(role: str, name: str) -> list[str]:
    """The arguments of one kind of instruction of a Dockerfile, continued lines joined."""
    joined = dockerfiles[role].replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in joined.splitlines() if line.startswith(f"{name} ")]


def extras_of(role: str) -> str:
    (extras,) = set(re.findall(r"\.\[([\w,-]+)\]", dockerfiles[role]))
    return extras


def requirements(extras: str) -> set[str]:
    """Names of the packages of these extras, with those of the extras that they include."""
    found: set[str] = set()
    known = project["project"]["optional-dependencies"]
    for requirement in (each for extra in extras.split(",") for each in known[extra]):
        own = re.fullmatch(r"slackwater\[([\w,-]+)\]", requirement)
        if own:
            found |= requirements(own[1])
        else:
            found.add(re.split(r"[^\w.-]", requirement)[0])
    return found


def test_compose_file_follows_the_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_there_is_one_dockerfile_per_role_and_each_is_used() -> None:
    built = {service["build"]["dockerfile"] for service in services.values() if "build" in service}
    assert built == {f"deploy/Dockerfile.{role}" for role in dockerfiles}
    assert set(dockerfiles) == {*SETTINGS, "loadgen"}
    assert {service["image"] for service in services.values() if "build" in service} == {
        f"slackwater-{role}" for role in dockerfiles
    }


@pytest.mark.parametrize("role", sorted(dockerfiles))
def test_an_image_installs_its_extra_and_runs_as_a_user(role: str) -> None:
    assert extras_of(role).split(",")[0] == role
    assert set(extras_of(role).split(",")) <= set(project["project"]["optional-dependencies"])
    assert instructions(role, "USER") == ["slackwater"]
    assert len(instructions(role, "ENTRYPOINT")) == 1
    assert ("torch" in requirements(role)) == (role not in WITHOUT_TORCH)
    health = instructions(role, "HEALTHCHECK")
    assert (len(health) == 1 and "shared.process.healthcheck" in health[0]) == (role in SETTINGS)


@pytest.mark.parametrize("role", sorted(dockerfiles))
def test_every_module_that_a_container_runs_exists(role: str) -> None:
    text = dockerfiles[role] + json.dumps([s for s in services.values() if s.get("image") == f"slackwater-{role}"])
    modules = set(re.findall(r'-m[", ]+((?:services|shared|loadgen)[\w.]*)', text))
    if role in SETTINGS:
        assert f"services.{role.replace('-', '_')}" in modules
    for module in modules:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, module
        main = Path(spec.origin).with_name("__main__.py") if spec.submodule_search_locations else Path(spec.origin)
        assert "__main__" in main.read_text(), f"{main} is not made to be run"
    scripts = project["project"]["scripts"]
    if role == "loadgen":
        assert json.loads(instructions(role, "ENTRYPOINT")[0]) == ["slackwater"] and "slackwater" in scripts


@pytest.mark.parametrize("role", sorted(SETTINGS))
def test_every_variable_is_a_setting_and_its_default_is_accepted(role: str) -> None:
    settings = settings_of(SETTINGS[role])
    variables = {setting.variable for setting in settings}
    environment = {name: defaults(value) for name, value in services[role]["environment"].items()}
    assert set(environment) <= variables
    baked = set(re.findall(r"\bSLACKWATER_\w+", " ".join(instructions(role, "ENV"))))
    assert baked <= PROCESS_VARIABLES | variables
    own = {setting.variable for setting in settings if setting.name in OF_COMPOSE}
    accepted, kept = (
        composed(SETTINGS[role], Sources({}, environ, None, ()).resolve(settings))
        for environ in (environment, {name: environment[name] for name in own & set(environment)})
    )
    assert accepted == kept, "docker-compose.yml has another default"


def test_executors_and_the_offline_queue_have_the_same_strategy() -> None:
    tables = [
        {
            setting.variable: services[role]["environment"].get(setting.variable)
            for setting in settings_of(SETTINGS[role])
            if setting.table
        }
        for role in ("executor", "offline-queue")
    ]
    assert tables[0] == tables[1]
    assert tables[0]["SLACKWATER_BUDGET_MS"]


def test_services_find_each_other() -> None:
    for role in SETTINGS:
        environment = services[role]["environment"]
        assert (environment["SLACKWATER_NATS"], environment["SLACKWATER_NATS_CREDS"]) == ("tls://nats:4222", BUS_FOLDER)
        assert any(volume.startswith(f"bus:{BUS_FOLDER}") for volume in services[role]["volumes"])
        assert services[role]["depends_on"]["nats"] == {"condition": "service_healthy"}
    for role in ("gateway", "offline-queue", "executor"):
        assert services[role]["depends_on"]["prepare-model"] == {"condition": "service_completed_successfully"}
        assert defaults(services[role]["environment"]["SLACKWATER_MODEL_PATH"]).endswith(f"/models/{DEFAULT_MODEL}")
    assert services["gateway"]["environment"]["SLACKWATER_HOST"] == "0.0.0.0"
    assert services["gateway"]["ports"] == ["${GATEWAY_PORT:-8000}:8000"]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert [config["static_configs"][0]["targets"] for config in scrape] == [["gateway:8000"]]


def test_what_is_mounted_exists() -> None:
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source, _, rest = volume.partition(":")
            target = rest.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).is_file(), f"{name} mounts {source}"
            else:
                assert source in compose["volumes"]
            if source == "cache":
                assert f"SLACKWATER_CACHE={target}" in " ".join(instructions(service["image"][11:], "ENV"))


def test_the_build_context_holds_what_pyproject_needs() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert {"pyproject.toml", "constraints.txt", project["project"]["readme"], *packages} <= kept
    assert set(project["project"]["license-files"]) <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_nats_configuration_is_valid_and_matches_that_of_a_local_stack(tmp_path: Path) -> None:
    """With the keys that compose has made before."""
    config, own = ROOT / "deploy/nats/nats.conf", tmp_path / "nats.conf"
    own.write_text(config.read_text().replace("/etc/nats/bus", str(tmp_path / "bus")))
    command, host = services["bus-keys"]["command"], "nats"
    assert command == ["bus", "init", BUS_FOLDER, "--host", host]
    assert CliRunner().invoke(app, ["bus", "init", str(tmp_path / "bus"), "--host", host]).exit_code == 0
    checked = subprocess.run([nats_server_binary(), "-t", "-c", str(own)], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr
    assert "bus:/etc/nats/bus:ro" in services["nats"]["volumes"]
    assert f"max_payload: {MAX_PAYLOAD}" in config.read_text()
    assert f"sync_interval: {SYNC_INTERVAL} " in config.read_text()
    assert services["nats"]["volumes"][1] == "nats:/data" and 'store_dir: "/data"' in config.read_text()


@pytest.mark.parametrize("role", sorted(set(WITHOUT_TORCH) - {"loadgen"}))
def test_a_service_without_torch_in_its_image_imports_without_it(role: str) -> None:
    module = f"services.{role.replace('-', '_')}.__main__"
    code = f"import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import {module}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
