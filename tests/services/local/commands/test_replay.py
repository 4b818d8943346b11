"""``slackwater replay`` finds its server as the other commands do."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.local.cli import app
from services.local.stack.data_dir import DataDir, StackFile


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    return path


@pytest.mark.parametrize(
    ("given", "environ", "asked"),
    [
        ((), {}, "http://127.0.0.1:1"),
        ((), {"SLACKWATER_URL": "http://127.0.0.1:2"}, "http://127.0.0.1:2"),
        (("--url", "127.0.0.1:3/v1"), {"SLACKWATER_URL": "http://127.0.0.1:2"}, "http://127.0.0.1:3"),
    ],
)
def test_it_is_the_stack_of_the_data_directory_where_no_other_is_named(
    tmp_path: Path, trace: Path, given: tuple[str, ...], environ: dict[str, str], asked: str
) -> None:
    """Nothing listens at any of these."""
    data_dir = DataDir(tmp_path / "data")
    stack = StackFile(os.getpid(), "nats://127.0.0.1:9", "http://127.0.0.1:1", "m", "sim", True, {})
    environ = {"SLACKWATER_URL": "", "SLACKWATER_DATA_DIR": str(tmp_path / "data")} | environ
    with data_dir.locked():
        data_dir.write_stack(stack)
        done = CliRunner(env=environ).invoke(app, ["replay", "--online", str(trace), *given])
    assert (done.exit_code, f"error: cannot reach {asked}: " in done.stderr) == (2, True), done.stderr
