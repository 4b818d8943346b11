"""``slackwater service install``: what it writes, says and refuses; systemd's own word on it where that is here."""

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local.cli import app


def install(home: Path, *words: str) -> Result:
    environ = {"XDG_CONFIG_HOME": str(home / ".config"), "SLACKWATER_CONFIG": "", "SLACKWATER_DATA_DIR": ""}
    return CliRunner(env=environ).invoke(app, ["service", "install", *words])


def parsed(text: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


def test_it_writes_a_unit_of_the_users_and_says_how_to_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "slackwater.toml"
    config.write_text('[stack]\nengine = "sim"\ndata_dir = "store"\ndrain_s = 7\n[executor]\ndrain_on_stop_s = 100\n')
    done = install(tmp_path, "--user")
    assert done.exit_code == 0, done.output
    path = tmp_path / ".config/systemd/user/slackwater.service"
    unit = parsed(path.read_text())
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert words == ["up", "--config", str(config), "--data-dir", str(tmp_path / "store")]
    assert Path(program).name == "slackwater" and os.access(program, os.X_OK)
    assert unit["Service"]["WorkingDirectory"] == str(tmp_path)
    assert unit["Service"]["KillMode"] == "mixed" and unit["Service"]["TimeoutStopSec"] == "137"
    assert unit["Install"]["WantedBy"] == "default.target" and "User" not in unit["Service"]
    for words in (f"wrote     {path}", "systemctl --user enable --now slackwater", f"rm {path}", "enable-linger"):
        assert words in done.stdout
    assert install(tmp_path, "--user").exit_code == 0, "the same again changes nothing"


def test_print_only_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = install(tmp_path, "--system", "--print", "--data-dir", "/srv/a folder/50%/$x")
    assert shown.exit_code == 0, shown.output
    assert '"--data-dir" "/srv/a folder/50%%/$$x"' in shown.stdout
    assert parsed(shown.stdout)["Install"]["WantedBy"] == "multi-user.target"
    assert parsed(shown.stdout)["Service"]["User"] and list(tmp_path.iterdir()) == []


def test_another_unit_is_not_replaced_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".config/systemd/user/mine.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\n")
    refused = install(tmp_path, "--user", "--name", "mine")
    assert refused.exit_code == 1 and "--force" in refused.stderr and path.read_text() == "[Unit]\n"
    assert install(tmp_path, "--user", "--name", "mine", "--force").exit_code == 0
    assert "ExecStart" in path.read_text()
    assert install(tmp_path, "--user", "--name", "../mine").exit_code == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert install(tmp_path, "--user").exit_code == 0
    path = tmp_path / ".config/systemd/user/slackwater.service"
    checked = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
