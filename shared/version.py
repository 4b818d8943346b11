"""The version of Slackwater, installed or run from the folder of its repository."""

import tomllib
from importlib import metadata
from pathlib import Path

PROJECT = "slackwater"
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
UNKNOWN = "unknown"


def version() -> str:
    """As it is installed, else as the repository has it; UNKNOWN where neither is there."""
    try:
        return metadata.version(PROJECT)
    except metadata.PackageNotFoundError:
        return _of_repository(PYPROJECT)


def _of_repository(pyproject: Path) -> str:
    try:
        project = tomllib.loads(pyproject.read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return UNKNOWN
    return str(project.get("version", UNKNOWN)) if project.get("name") == PROJECT else UNKNOWN
