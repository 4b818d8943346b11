"""``slackwater config``, and what the other commands make of a configuration file."""

import json
import os
import tomllib
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.config import config_template, reference, toml_value
from services.local.stack.catalogue import SERVICES, STACK_SETTINGS, all_values, read_config, stack_options, tables
from services.local.stack.data_dir import DataDir, StackFile
from shared.errors import ConfigError, StackError
from shared.settings.config import Origin

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a configuration file, and no user's own either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def slackwater(*args: str, **environ: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of the command, run in this process."""
    result = CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb", **environ}).invoke(app, args)
    return result.exit_code, result.stdout, result.stderr


def test_the_written_file_says_the_defaults(folder: Path) -> None:
    status, stdout, _ = slackwater("config", "init")
    assert (status, stdout) == (0, "wrote slackwater.toml; slackwater config show tells what it makes of it\n")
    file = folder / "slackwater.toml"
    assert slackwater("config", "init", "-")[1] == file.read_text()
    assert tomllib.loads(file.read_text()) == {table: {} for table in tables()}
    file.write_text("".join(line.removeprefix("#") for line in file.open() if not line.startswith("# ")))
    values = all_values(read_config(None, {}), {})
    for table, settings in tables().items():
        for setting in settings:
            found = values[table][setting.name]
            assert (found.value, found.origin) == (setting.default, Origin.FILE)
    assert stack_options({}, "", {}) == msgspec.structs.replace(stack_options({}, None, {}), config_file=None)


def test_a_file_that_is_there_is_kept(folder: Path) -> None:
    (folder / "slackwater.toml").write_text("[stack]\n")
    status, _, stderr = slackwater("config", "init")
    assert (status, stderr) == (
        2,
        "error: slackwater.toml is there already; replace it with --force, or name another file\n",
    )
    assert slackwater("config", "init", "--force")[0] == 0
    assert (folder / "slackwater.toml").read_text() == config_template()
    assert slackwater("config", "init", "no-such-folder/x.toml")[0] == 2


def test_show_tells_what_each_of_several_models_has(folder: Path) -> None:
    first = '[[models]]\nname = "a"\nmodel = "x"\n[models.executor]\nmax_num_seqs = 7\n'
    (folder / "slackwater.toml").write_text(first + '[[models]]\nmodel = "y"\nexecutors = 2\n')
    shown = json.loads(slackwater("config", "show", "--json", SLACKWATER_EXECUTORS="3")[1])
    own = [tuple(each.values()) for each in shown["settings"] if each["table"].startswith("models")]
    assert own == [
        ("models.0", "name", "a", "file", "slackwater.toml line 2"),
        ("models.0", "model", "x", "file", "slackwater.toml line 3"),
        ("models.0.executor", "max_num_seqs", 7, "file", "slackwater.toml line 5"),
        ("models.1", "model", "y", "file", "slackwater.toml line 7"),
        ("models.1", "executors", 3, "environment", "SLACKWATER_EXECUTORS"),
    ]


def test_show_tells_where_each_value_is_from(folder: Path) -> None:
    (folder / "slackwater.toml").write_text('[stack]\nport = 9000\nengine = "sim"\n\n[executor]\nmax_num_seqs = 7\n')
    environ = {"SLACKWATER_PORT": "9001", "SLACKWATER_WINDOW": "128"}
    shown = json.loads(slackwater("config", "show", "--json", **environ)[1])
    assert shown["file"] == "slackwater.toml"
    differing = {
        (each["table"], each["name"]): (each["value"], each["origin"], each["where"])
        for each in shown["settings"]
        if each["origin"] != "default"
    }
    assert differing == {
        ("stack", "port"): (9001, "environment", "SLACKWATER_PORT"),
        ("stack", "engine"): ("sim", "file", "slackwater.toml line 3"),
        ("executor", "max_num_seqs"): (7, "file", "slackwater.toml line 6"),
        ("predictor", "window"): (128, "environment", "SLACKWATER_WINDOW"),
    }
    rows = [line.split() for line in slackwater("config", "show", **environ)[1].splitlines()]
    assert ["stack", "port", "9001", "SLACKWATER_PORT"] in rows
    assert ["executor", "max_num_seqs", "7", "slackwater.toml", "line", "6"] in rows
    assert ["stack", "host", '"127.0.0.1"', "default"] in rows
    endpoint = f"http://{'a' * 200}:4318"
    assert f'"{endpoint}"' in slackwater("config", "show", SLACKWATER_TRACE_ENDPOINT=endpoint)[1], "in one line"


def test_what_is_secret_is_not_shown(folder: Path) -> None:
    for args in (("show", "--json"), ("show",)):
        status, stdout, _ = slackwater("config", *args, SLACKWATER_API_KEY="sw-very-secret")
        assert status == 0 and "sw-very-secret" not in stdout
        assert "(hidden)" in stdout and "SLACKWATER_API_KEY" in stdout


def test_what_a_url_lets_in_with_is_not_shown(folder: Path) -> None:
    environ = {
        "SLACKWATER_NATS": "nats://bob:hunter2@one:4222,bob:hunter2@two:4222",
        "SLACKWATER_TRACE_ENDPOINT": "https://bob:hunter2@traces:4318",
    }
    for args in (("show", "--json"), ("show",)):
        status, stdout, _ = slackwater("config", *args, **environ)
        assert status == 0 and "hunter2" not in stdout
        assert '"nats://one:4222,two:4222"' in stdout and '"https://traces:4318"' in stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[stack]\nprot = 1\n", "slackwater.toml line 2: unknown setting prot of [stack]; did you mean port?"),
        ("[executor]\npreset = 'bros'\n", "line 2: preset belongs to [strategy], not to [executor]"),
        ("[stack]\nmax_num_seqs = 1\n", "line 2: max_num_seqs belongs to [executor], not to [stack]"),
        ("[gateway]\nport = 1\n", "line 2: port belongs to [stack], not to [gateway]"),
        ("[stack]\nport = 70000\n", "line 2: port: Expected `int` <= 65535 (it is 70000)"),
        ("[strategy]\npreset = 'fair'\n", "line 2: preset: unknown preset 'fair'; known: hygen"),
        ("[profiler]\nslo_drift = 0\n", "line 2: slo_drift: Expected `float` > 0.0 (it is 0)"),
        ("[stack]\nslo = ['fast']\n", "write METRIC_STATISTIC<=BOUND"),
    ],
)
def test_up_refuses_a_bad_file_before_anything_starts(folder: Path, content: str, message: str) -> None:
    (folder / "slackwater.toml").write_text(content)
    status, stdout, stderr = slackwater("up", "--data-dir", str(folder / "data"))
    assert (status, stdout) == (2, "")
    assert message in stderr
    assert not (folder / "data").exists()


def test_up_takes_command_line_over_environment_over_file(folder: Path) -> None:
    (folder / "slackwater.toml").write_text(
        '[stack]\nport = 9000\nthreads = 3\nslo = ["ttft_p99<=800ms"]\n[executor]\nmodel_path = "m"\n'
    )
    environ = {"SLACKWATER_THREADS": "4", "SLACKWATER_KV_BLOCKS": "64", "SLACKWATER_LOG_LEVEL": ""}
    options = stack_options({"kv_blocks": 32, "slo": ["tbt_p99<=9ms", "tpot_p50<=7ms"]}, None, environ)
    assert (options.port, options.threads, options.kv_blocks, options.log_level) == (9000, 4, 32, "info")
    assert options.slo == "tbt_p99<=9ms,tpot_p50<=7ms"
    assert options.config_file == folder / "slackwater.toml"
    with pytest.raises(ConfigError, match="give one of --budget-ms and --slo"):
        stack_options({"budget_ms": 5.0}, None, environ)
    assert stack_options({"budget_ms": 5.0, "slo": [""]}, None, environ).strategy.budget_ms == 5.0


def test_other_commands_find_the_data_directory_in_the_file(folder: Path) -> None:
    (folder / "slackwater.toml").write_text('[stack]\ndata_dir = "from-file"\n')
    assert f"no stack runs in {folder}/from-file;" in slackwater("status")[2]
    environ = {"SLACKWATER_DATA_DIR": "from-environ"}
    assert f"no stack runs in {folder}/from-environ;" in slackwater("status", **environ)[2]
    assert f"no stack runs in {folder}/given;" in slackwater("status", "--data-dir", "given", **environ)[2]


def test_other_commands_find_the_bus_in_the_file(folder: Path, nats_url: str) -> None:
    (folder / "slackwater.toml").write_text(f'[stack]\nnats = "{nats_url}"\n')
    assert slackwater("key", "create", "alice")[0] == 0
    assert not (folder / ".slackwater").exists()
    listed = slackwater("key", "list", "--json", "--nats", nats_url)[1]
    assert [record["name"] for record in json.loads(listed)] == ["alice"]
    assert f"no service answers on {nats_url}" in slackwater("status")[2]
    assert "does not answer" in slackwater("status", SLACKWATER_NATS="nats://127.0.0.1:1")[2]


@pytest.mark.parametrize("setting", ["nats = 5", "data_dir = 5"])
def test_other_commands_name_what_is_no_text_in_the_file(folder: Path, setting: str) -> None:
    (folder / "slackwater.toml").write_text(f"[stack]\n{setting}\n")
    for command in (("status",), ("key", "list"), ("batch", "list")):
        status, _, stderr = slackwater(*command)
        name = setting.partition(" ")[0]
        if name == "data_dir" or command[0] != "batch":
            assert (status, f"line 2: {name} is 5, and has to be a string" in stderr) == (2, True), stderr


def test_a_bad_configuration_is_the_same_to_every_command(folder: Path) -> None:
    (folder / "slackwater.toml").write_text("[stack\n")
    for command in (("config", "show"), ("key", "list"), ("status",), ("up",)):
        status, _, stderr = slackwater(*command)
        assert (status, "slackwater.toml cannot be read" in stderr) == (2, True), stderr


@pytest.mark.parametrize("is_held", [False, True])
def test_a_stack_is_there_as_long_as_its_supervisor_holds_its_folder(folder: Path, is_held: bool) -> None:
    """Its number may be another process's by now."""
    data_dir = DataDir(folder / "data")
    stack = StackFile(os.getpid(), "nats://127.0.0.1:1", "http://127.0.0.1:1", "m", "sim", True, {})
    with data_dir.locked():
        data_dir.write_stack(stack)
        if is_held:
            assert data_dir.read_stack() == stack
            return
    with pytest.raises(StackError, match="is gone"):
        data_dir.read_stack()
    with data_dir.locked():  # whoever looks lets go of it
        data_dir.write_stack(stack)
        assert data_dir.read_stack() == stack


def test_every_setting_has_one_table() -> None:
    names = {setting.name for setting in STACK_SETTINGS}
    for service in SERVICES:
        assert not names & {setting.name for setting in tables()[service]}


def test_the_documentation_lists_the_settings_as_they_are() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    current = "\n".join(reference()).rstrip() + "\n"
    assert page.partition("## Settings\n\n")[2] == current, "put what slackwater config reference prints at its end"


def test_values_are_written_as_toml_reads_them() -> None:
    for value in ('a"b\\c', True, 3, 0.5, 1e-7):
        assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
