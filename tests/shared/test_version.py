"""The version, where the package is installed and where it is not."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from shared import version


def test_the_installed_version() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert version.version() == pyproject["project"]["version"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[project]\nname = "slackwater"\nversion = "7.8"\n', "7.8"),
        ('[project]\nname = "another"\nversion = "7.8"\n', version.UNKNOWN),
        ("[tool.other]\n", version.UNKNOWN),
        ("[", version.UNKNOWN),
        (None, version.UNKNOWN),
    ],
)
def test_where_it_is_not_installed_the_repository_tells(
    text: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    file = tmp_path / "pyproject.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(version, "PYPROJECT", file)
    assert version.version() == found
