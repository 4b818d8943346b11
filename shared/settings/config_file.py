"""The configuration file: TOML, a table for the stack as a whole, one for each kind of service, and one for each of
several models.

Searched in this order: ``--config FILE``, ``SLACKWATER_CONFIG``, ``slackwater.toml`` in the working directory, and
``slackwater/slackwater.toml`` in the user's folder of configurations (``XDG_CONFIG_HOME``, else ``~/.config``).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

FILE_NAME = "slackwater.toml"
VARIABLE = "SLACKWATER_CONFIG"
STACK = "stack"  # its settings hold for every service that has one of the same name
TABLES = (STACK, "strategy", "gateway", "offline-queue", "predictor", "profiler", "executor")
MODELS = "models"  # a list of tables: what a model has of its own
OWN_TABLES = ("strategy", "offline-queue", "executor")  # that a model may have, over the file's
SIMILAR = 0.5  # of 1, by difflib
HEADER = re.compile(r"\s*(\[?)\[([^\[\]]+)\]")
KEY = re.compile(r"""\s*([\w"'.\s-]+?)\s*=""")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that was read. ``lines``: where each ``(table,)`` and ``(table, key)`` stands, from 1; of a model's tables
    as ``(models, 0, key)`` and ``(models, 0, table, key)``."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, ...], int]
    models: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Raises ConfigError where the file is no TOML, or has something else than the known tables."""
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:  # ValueError: no text, no TOML, too many digits
            raise ConfigError(f"{path} cannot be read: {error}") from error
        models = content.pop(MODELS, [])
        file = cls(path, content, _line_numbers(text), models)
        if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
            raise ConfigError(f"{file.where(MODELS)}: {MODELS} is a list of tables; write [[{MODELS}]] above each")
        for name, table in content.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{file.where(name)}: {name} is in no table; write it below [{STACK}]")
            if name not in TABLES:
                raise ConfigError(f"{file.where(name)}: unknown table [{name}]; {nearest(name, TABLES)}")
        return file

    def table(self, name: str) -> Mapping[str, Any]:
        """Empty where the file has none of this name."""
        return self.tables.get(name, {})

    def where(self, *path: str) -> str:
        """``slackwater.toml line 3``."""
        line = self.lines.get(path)
        return str(self.path) if line is None else f"{self.path} line {line}"

    def of_model(self, index: int) -> ConfigFile:
        """The file as one of its models has it: the model's own tables over those of the file."""
        model, lines = self.models[index], dict(self.lines)
        own = {STACK: {key: value for key, value in model.items() if key not in OWN_TABLES}}
        own |= {table: model[table] for table in OWN_TABLES if table in model}
        for table, keys in own.items():
            place = (MODELS, str(index)) if table == STACK else (MODELS, str(index), table)
            lines |= {(table, key): self.lines[*place, key] for key in keys if (*place, key) in self.lines}
        tables = {table: {**self.table(table), **own.get(table, {})} for table in (*self.tables, *own)}
        return ConfigFile(self.path, tables, lines)

    def require_known(self, table: str, known: Collection[str]) -> None:
        """Raises ConfigError for a key that is not among them, with the nearest of them."""
        for key in self.table(table):
            if key not in known:
                raise ConfigError(
                    f"{self.where(table, key)}: unknown setting {key} of [{table}]; {nearest(key, known)}"
                )


def find_config(given: str | None, environ: Mapping[str, str]) -> ConfigFile | None:
    """The first that is there. An empty ``given`` means none. Raises ConfigError where a named one is missing."""
    named = environ.get(VARIABLE) if given is None else given
    if named:
        return ConfigFile.read(Path(named).expanduser())
    if given is not None:
        return None
    places = (Path(FILE_NAME), user_config(environ))
    return next((ConfigFile.read(path) for path in places if path.is_file()), None)


def user_config(environ: Mapping[str, str]) -> Path:
    """The user's own file, whether it is there or not."""
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "slackwater" / FILE_NAME


def nearest(name: str, known: Collection[str]) -> str:
    """What to write instead of a name that is unknown."""
    alike = {_alike(each): each for each in known}
    similar = difflib.get_close_matches(_alike(name), alike, n=1, cutoff=SIMILAR)
    return f"did you mean {alike[similar[0]]}?" if similar else f"known: {', '.join(known)}"


def _alike(name: str) -> str:
    return name.lower().replace("-", "_")


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """The first line of each table and key. Only for messages: what looks like a key inside a text of several lines
    is taken for one."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    num_models = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            table = _names(header[2])
            if table[0] == MODELS:
                lines.setdefault((MODELS,), number)
                num_models += bool(header[1])
                table = (MODELS, f"{max(0, num_models - 1)}", *table[1:])
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault(table + _names(key[1]), number)
    return lines


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
