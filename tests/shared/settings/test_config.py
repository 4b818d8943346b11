"""Where a service's settings come from: command line, environment, configuration file, defaults."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from services.executor.settings import ExecutorSettings
from services.local.stack.catalogue import SERVICES
from shared.errors import ConfigError
from shared.scheduling.strategy import Strategy
from shared.settings.config import load
from shared.settings.config_file import ConfigFile, find_config, user_config
from shared.settings.setting import LIST, choices, settings_of


class Settings(msgspec.Struct, frozen=True):
    """A service's."""

    path: Annotated[str, Meta(description="where")]
    blocks: Annotated[int, Meta(ge=1, description="how many")] = 8
    rate: Annotated[float, Meta(gt=0, description="how fast")] = 1.0
    fresh: Annotated[bool, Meta(description="whether")] = False
    engine: Annotated[str, Meta(description="which", extra=choices(("torch", "sim")))] = "torch"
    slo: Annotated[str, Meta(description="what to keep", extra=LIST)] = ""
    inner: int = 3

    def __post_init__(self) -> None:
        if self.fresh and self.blocks == 1:
            raise ValueError("fresh needs 2 blocks")


class Borrower(msgspec.Struct, frozen=True):
    blocks: Annotated[int, Settings] = 8


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a home without a configuration file."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def loaded(argv: list[str], folder: Path, **environ: str) -> Settings:
    return load(Settings, "executor", argv, {"XDG_CONFIG_HOME": str(folder / "home"), **environ})


def test_each_source_comes_before_the_next(nowhere: Path) -> None:
    (nowhere / "slackwater.toml").write_text(
        '[stack]\npath = "stack"\nblocks = 2\nrate = 2\nengine = "sim"\n'
        "[executor]\nblocks = 3\nrate = 3\n[gateway]\nport = 1\n"
    )
    found = loaded(["--path", "given"], nowhere, SLACKWATER_PATH="environ", SLACKWATER_RATE="4.5", SLACKWATER_ENGINE="")
    assert (found.path, found.rate, found.blocks, found.engine, found.fresh) == ("given", 4.5, 3, "sim", False)


def test_the_first_file_that_is_there_is_taken(nowhere: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(nowhere / "home")}
    assert find_config(None, environ) is None
    places = [user_config(environ), nowhere / "slackwater.toml", nowhere / "environ.toml", nowhere / "given.toml"]
    for blocks, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"[executor]\nblocks = {blocks}\n")
    for given, variable, blocks in ((None, None, 1), (None, "environ.toml", 2), ("given.toml", "environ.toml", 3)):
        file = find_config(given, environ | ({"SLACKWATER_CONFIG": variable} if variable else {}))
        assert file is not None and file.table("executor") == {"blocks": blocks}
    assert find_config("", environ) is None
    (nowhere / "slackwater.toml").unlink()
    file = find_config(None, environ)
    assert file is not None and file.table("executor") == {"blocks": 0}


def test_texts_become_what_the_setting_is(nowhere: Path) -> None:
    found = loaded(["--path", "7", "--blocks", "16", "--fresh", "true", "--rate", "1"], nowhere)
    assert found == Settings(path="7", blocks=16, fresh=True, rate=1.0)
    (nowhere / "slackwater.toml").write_text('[executor]\npath = "x"\nslo = ["a<=1ms", "b<=2ms"]\n')
    assert loaded([], nowhere).slo == "a<=1ms,b<=2ms"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[executor]\n\nblokcs = 3\n",
            r"\.toml line 3: unknown setting blokcs of \[executor\]; did you mean blocks\?",
        ),
        ("[executor]\nxyz = 3\n", "unknown setting xyz of .* known: path, blocks, rate, fresh, engine, slo$"),
        ("[executor]\ninner = 3\n", "unknown setting inner"),
        ("# nothing\n[exector]\n", r"line 2: unknown table \[exector\]; did you mean executor\?"),
        ("blocks = 3\n", r"line 1: blocks is in no table; write it below \[stack\]"),
        ("[executor]\nblocks = 0\n", r"line 2: blocks: Expected `int` >= 1 \(it is 0\)"),
        ('[executor]\nblocks = "3"\n', r"line 2: blocks: Expected `int`, got `str`"),
        ("[executor]\nrate = 0.0\n", r"line 2: rate: Expected `float` > 0\.0"),
        ('[stack]\n"engine" = "tpu"\n', r"line 2: engine: unknown engine 'tpu'; known: torch, sim"),
        ("[executor\n", r"slackwater\.toml cannot be read: .*line 1"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(nowhere: Path, content: str, message: str) -> None:
    (nowhere / "slackwater.toml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        loaded(["--path", "x"], nowhere)


def test_bad_values_name_where_they_are_from(nowhere: Path) -> None:
    with pytest.raises(ConfigError, match="path is missing: give --path or set SLACKWATER_PATH"):
        loaded([], nowhere)
    with pytest.raises(ConfigError, match=r"^--blocks: Expected `int` >= 1 \(it is '0'\)"):
        loaded(["--path", "x", "--blocks", "0"], nowhere)
    with pytest.raises(ConfigError, match=r"^SLACKWATER_FRESH: Expected `bool`"):
        loaded(["--path", "x"], nowhere, SLACKWATER_FRESH="perhaps")
    with pytest.raises(ConfigError, match=r"^executor: fresh needs 2 blocks"):
        loaded(["--path", "x", "--blocks", "1", "--fresh", "true"], nowhere)
    with pytest.raises(ConfigError, match=r"no-such\.toml cannot be read"):
        loaded(["--path", "x", "--config", "no-such.toml"], nowhere)


def test_a_long_error_has_both_its_ends(nowhere: Path) -> None:
    class Wordy(msgspec.Struct, frozen=True):
        words: Annotated[str, Meta(description="what to say")] = ""

        def __post_init__(self) -> None:
            if self.words:
                raise ValueError(f"begin{self.words}end")

    def said(num: int) -> str:
        with pytest.raises(ConfigError) as caught:
            load(Wordy, "executor", ["--words", "x" * num], {})
        return str(caught.value)

    assert said(992) == f"executor: begin{'x' * 992}end"
    assert said(993) == f"executor: begin{'x' * 495} ... {'x' * 497}end"


def test_help_tells_of_each_setting_where_it_is_from(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Percents(msgspec.Struct, frozen=True):
        """Counts %."""

        share: Annotated[float, Meta(description="of 100%")]
        name: Annotated[str, Meta(description="whose")] = ""
        blocks: Annotated[int, Meta(description="how many")] = 8

    with pytest.raises(SystemExit) as ended:
        load(Percents, "offline-queue", ["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and text.startswith("usage: python -m services.offline_queue [-h]")
    assert "--share VALUE of 100% (required; SLACKWATER_SHARE)" in text
    assert "--name VALUE whose (default ''; SLACKWATER_NAME)" in text
    assert "--blocks VALUE how many (default 8; SLACKWATER_BLOCKS)" in text
    assert "--config FILE configuration file" in text and "Counts %." in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[strategy]\nprezet = 3\n", r"line 2: unknown setting prezet of \[strategy\]; did you mean preset\?"),
        ('[executor]\npreset = "bros"\n', r"line 2: unknown setting preset of \[executor\]"),
        ("[strategy]\nmax_num_seqs = 3\n", r"line 2: unknown setting max_num_seqs of \[strategy\]"),
        ("[executor]\nmax-num-seqs = 3\n", r"did you mean max_num_seqs\?"),
        (
            '[strategy]\nlatency_budget = "profiled"\nbudget_ms = 5.0\n',
            "^executor: latency budget profiled is no number",
        ),
    ],
)
def test_a_table_of_its_own_has_its_own_settings(nowhere: Path, content: str, message: str) -> None:
    (nowhere / "slackwater.toml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(ExecutorSettings, "executor", ["--model-path", "m"], {})


MODELS = """\
[stack]
slo = "a"
[executor]
threads = 2
block_size = 16

[[models]]
name = "b"
slo = "c"
[models.executor]
threads = 3
[[models]]
name = "d"
[models."strategy"]
preset = "fcfs"
"""


def test_a_model_has_the_files_settings_but_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "slackwater.toml"
    path.write_text(MODELS)
    file = ConfigFile.read(path)
    first, second = file.of_model(0), file.of_model(1)
    assert first.table("stack") == {"slo": "c", "name": "b"}
    assert first.table("executor") == {"threads": 3, "block_size": 16} and first.table("strategy") == {}
    assert second.table("stack") == {"slo": "a", "name": "d"} and second.table("strategy") == {"preset": "fcfs"}
    assert second.table("executor") == file.table("executor") == {"threads": 2, "block_size": 16}
    wheres = [("stack", "slo"), ("stack", "name"), ("executor", "threads"), ("executor", "block_size")]
    assert [first.where(*each) for each in wheres] == [f"{path} line {line}" for line in (9, 8, 11, 5)]
    assert [second.where(*each) for each in wheres] == [f"{path} line {line}" for line in (2, 13, 4, 5)]
    assert second.where("strategy", "preset") == f"{path} line 15"
    assert first.where("strategy", "preset") == str(path)
    assert file.where("models") == f"{path} line 7" and file.where("models", "1", "name") == f"{path} line 13"


@pytest.mark.parametrize("content", ["models = 3\n", "models = [1]\n", "\n[models]\n", '[models.executor]\na = "x"\n'])
def test_models_are_a_list_of_tables(tmp_path: Path, content: str) -> None:
    path = tmp_path / "slackwater.toml"
    path.write_text(content)
    line = len(content) - len(content.lstrip()) + 1
    with pytest.raises(
        ConfigError, match=rf"toml line {line}: models is a list of tables; write \[\[models\]\] above each"
    ):
        ConfigFile.read(path)


def test_a_models_table_may_stand_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "slackwater.toml"
    path.write_text('[[models]]\nname = "b"\nexecutor = { threads = 5 }\n')
    file = ConfigFile.read(path).of_model(0)
    assert file.table("executor") == {"threads": 5} and file.where("executor", "threads") == str(path)


def test_where_the_users_own_file_is() -> None:
    assert user_config({"XDG_CONFIG_HOME": "/x"}) == Path("/x/slackwater/slackwater.toml")
    assert user_config({}) == user_config({"XDG_CONFIG_HOME": ""}) == Path.home() / ".config/slackwater/slackwater.toml"


def test_lines_are_those_of_tables_and_keys(tmp_path: Path) -> None:
    file = tmp_path / "slackwater.toml"
    file.write_text('# [gateway]\n[stack] # all\n"port" = 1\n\n[ executor ]\nthreads=2\n')
    lines = ConfigFile.read(file).lines
    assert lines == {("stack",): 2, ("stack", "port"): 3, ("executor",): 5, ("executor", "threads"): 6}


def test_a_borrowed_setting_is_that_of_its_owner() -> None:
    (borrowed,) = settings_of(Borrower)
    assert borrowed == settings_of(Settings)[1]
    assert [setting.name for setting in settings_of(Settings)] == ["path", "blocks", "rate", "fresh", "engine", "slo"]


@pytest.mark.parametrize("service", list(SERVICES))
def test_every_setting_of_a_service_is_described_and_its_default_is_accepted(service: str) -> None:
    settings = settings_of(SERVICES[service])
    names = [setting.name for setting in settings if not setting.table]
    assert names == [name for name in SERVICES[service].__struct_fields__ if name != "strategy"]
    for setting in settings:
        assert setting.required or setting.convert(setting.default, strict=True) == setting.default


def test_a_service_refuses_its_file_with_status_2(nowhere: Path) -> None:
    (nowhere / "slackwater.toml").write_text("[predictor]\nwindwo = 100\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "services.predictor"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr == "slackwater.toml line 2: unknown setting windwo of [predictor]; did you mean window?\n"


def test_the_executors_file_is_taken(nowhere: Path) -> None:
    (nowhere / "slackwater.toml").write_text(
        '[strategy]\npreset = "bros"\nutility_ratio = 0.5\n[executor]\nmax_num_seqs = 7\n'
    )
    found = load(ExecutorSettings, "executor", ["--model-path", "m"], {})
    assert (found.strategy, found.max_num_seqs) == (Strategy.of("bros", utility_ratio=0.5), 7)
