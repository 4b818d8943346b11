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

from deploy.lock import FOR_CPUS, FROM_SOURCE, LOCKS
from services.executor.prepare_model import DEFAULT_MODEL
from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.local.cli import app
from services.local.stack.catalogue import tables
from services.local.stack.service_commands import MAX_PAYLOAD, SYNC_INTERVAL
from services.offline_queue.settings import OfflineQueueSettings
from services.predictor.settings import PredictorSettings
from services.profiler.settings import ProfilerSettings
from shared.settings.config import Sources, composed
from shared.settings.setting import settings_of
from tests.conftest import nats_server_binary
from tests.deploy.compose import INTERPOLATION, ROOT, read_services
from tests.simulation.nats.server import VERSION

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
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}")  # a version in full, and what it was then
NOBODY = "10001:10001"

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
def test_an_image_has_what_is_locked_for_it_on_a_base_that_is_pinned_and_runs_as_nobody(role: str) -> None:
    assert LOCKS[role].extras[0] == role
    assert instructions(role, "FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    (base,) = {each.split("=", 1)[1] for each in instructions(role, "ARG") if each.startswith("PYTHON_IMAGE=")}
    assert PINNED.fullmatch(base) and {base} == set(re.findall(r"PYTHON_IMAGE=(\S+)", "".join(dockerfiles.values())))
    commands = [" ".join(each.split()) for run in instructions(role, "RUN") for each in run.split("&&")]
    tools, packages, own, installed = [each for each in commands if each.startswith("/opt/build/bin/pip")]
    assert all("--require-hashes --only-binary :all:" in each and " -r " in each for each in (tools, packages))
    assert f"--no-binary {FROM_SOURCE} " in packages and own.endswith(" .") and "--no-build-isolation" in own
    assert "--no-index" in installed and "pip --python /opt/slackwater install" in installed
    copied = instructions(role, "COPY")[0].split()[:-1]
    lock = "${LOCK}" if role == "executor" else role
    assert copied == ["deploy/locks/build.txt", f"deploy/locks/{lock}.txt"]
    assert instructions(role, "USER") == [NOBODY]
    assert len(instructions(role, "ENTRYPOINT")) == 1
    health = instructions(role, "HEALTHCHECK")
    assert (len(health) == 1 and "shared.process.healthcheck" in health[0]) == (role in SETTINGS)


@pytest.mark.parametrize("role", sorted(SETTINGS))
def test_a_container_that_can_trace_is_told_where_to_and_has_what_sends_spans(role: str) -> None:
    traces = "trace_endpoint" in SETTINGS[role].__struct_fields__
    assert ("SLACKWATER_TRACE_ENDPOINT" in services[role]["environment"]) == traces
    assert ("traces" in LOCKS[role].extras) == traces


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


def test_all_of_a_strategy_and_the_slos_come_from_the_environment() -> None:
    strategy = {f"SLACKWATER_{setting.name.upper()}" for setting in tables()["strategy"]}
    for role in ("executor", "offline-queue"):
        assert strategy <= set(services[role]["environment"])
    assert all("SLACKWATER_SLO" in services[role]["environment"] for role in ("profiler", "gateway"))


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


def test_executors_are_built_with_a_lock_that_there_is() -> None:
    args = services["executor"]["build"]["args"]
    assert "LOCK=executor" in instructions("executor", "ARG") and defaults(args["LOCK"]) == "executor"
    assert set(args) <= {each.split("=")[0] for each in instructions("executor", "ARG")}
    assert f"LOCK={FOR_CPUS}" in dockerfiles["executor"] and FOR_CPUS in (ROOT / "docker-compose.yml").read_text()


def test_images_of_others_are_pinned() -> None:
    others = {name: service["image"] for name, service in services.items() if "build" not in service}
    assert set(others) == {"nats", "prometheus", "grafana"}
    assert [image for image in others.values() if not PINNED.fullmatch(image)] == []
    values = yaml.safe_load((ROOT / "deploy/helm/slackwater/values.yaml").read_text())
    assert f"nats:{values['nats']['container']['image']['tag']}" == others["nats"]
    minor = VERSION.rpartition(".")[0]  # of the server whose behaviour the tests know
    assert others["nats"].startswith(f"nats:{minor}.")


def test_a_model_is_prepared_for_the_engine_that_runs_it() -> None:
    """With vllm one of a family that torch cannot run, and with sim no adapters."""
    for environ, engine in (({}, "torch"), ({"SLACKWATER_ENGINE": "vllm"}, "vllm")):
        read = read_services(environ)
        assert f"--engine={engine}" in (read["prepare-model"].command or ())
        assert read["executor"].environment["SLACKWATER_ENGINE"] == engine


def test_only_the_gateway_which_wants_a_key_is_reached_from_elsewhere() -> None:
    open_to_all = {
        name for name, each in services.items() for port in each.get("ports", ()) if not port.startswith("127.0.0.1:")
    }
    assert open_to_all == {"gateway"}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_what_a_service_caches_is_where_it_may_write(name: str) -> None:
    """But for what another one fetches for it."""
    caches = re.findall(r"\b(?!SLACKWATER_|HF_HOME)\w*CACHE\w*=(\S+)", " ".join(instructions(name, "ENV")))
    assert bool(caches) == (name == "executor"), "Numba's"
    closed = [volume.target for volume in read_services({})[name].volumes if volume.is_read_only]
    assert [path for path in caches if any(path.startswith(f"{target}/") for target in closed)] == []


def test_a_model_of_a_hub_outlives_the_container_that_fetched_it() -> None:
    read = read_services({})
    fetching, reading = read["prepare-model"], read["executor"]
    (kept,) = [each for each in fetching.volumes if fetching.environment["HF_HOME"].startswith(f"{each.target}/")]
    assert kept.is_named and kept.source in compose["volumes"] and not kept.is_read_only
    assert (kept.source, kept.target) in {(each.source, each.target) for each in reading.volumes}


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


def test_the_gateway_ends_before_those_that_its_open_answers_need() -> None:
    """Compose stops whom others depend on after them, and all else at the same time."""
    read = read_services({})
    assert {name for name in ("offline-queue", "executor") if name not in read["gateway"].after} == set()
    assert float(read["gateway"].environment["SLACKWATER_DRAIN_S"]) < read["gateway"].grace_s


def test_what_is_mounted_exists() -> None:
    assert any(service.get("volumes") for service in services.values())
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
    assert {"pyproject.toml", "deploy/locks/*.txt", project["project"]["readme"], *packages} <= kept
    assert set(project["project"]["license-files"]) <= kept
    assert all(any(ROOT.glob(name)) for name in kept)


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
    (watched,) = re.findall(r"^http\w*: (.*?)  #", config.read_text(), re.MULTILINE)
    assert watched.strip('"') in services["nats"]["healthcheck"]["test"][-1], "by its own container alone"
    assert services["nats"]["volumes"][1] == "nats:/data" and 'store_dir: "/data"' in config.read_text()


def run_with_its_lock(lock: str, module: str, *calls: str) -> None:
    command = [sys.executable, "-m", "tests.deploy.locked_only", lock, module, *calls]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("role", sorted(SETTINGS))
def test_a_service_imports_with_what_its_image_has(role: str) -> None:
    run_with_its_lock(FOR_CPUS if role == "executor" else role, f"services.{role.replace('-', '_')}.__main__")


def test_the_command_line_works_with_what_its_image_has() -> None:
    commands = ("bus init", "chat", "batch submit", "key create", "replay", "status", "role")
    slackwater = project["project"]["scripts"]["slackwater"]
    run_with_its_lock("loadgen", slackwater, *(f"{command} --help" for command in commands))
