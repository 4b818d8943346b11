"""Settings of a process: one frozen struct, from command line over environment over file over defaults.

Each field ``kv_blocks: Annotated[int, Meta(description=...)] = 4096`` is set by ``--kv-blocks``, by
``SLACKWATER_KV_BLOCKS`` or by ``kv_blocks`` in the configuration file, where the service's own table comes before
``[stack]``. It is checked by its type and bounds, and explained by ``--help``.
"""

import argparse
import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import msgspec

from shared.errors import ConfigError
from shared.settings.config_file import FILE_NAME, STACK, ConfigFile, find_config
from shared.settings.setting import Setting, is_table, settings_of

T = TypeVar("T", bound=msgspec.Struct)
MOST_CHARACTERS = 1000  # of an error


class Origin(enum.StrEnum):
    """Who says so."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Value:
    """``where``: the option, the variable, or the file and line; empty for a default."""

    value: Any
    origin: Origin
    where: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings are looked up, the first that has one deciding. ``given`` is the command line; of the file, the
    ``tables`` in their order."""

    given: Mapping[str, Any]
    environ: Mapping[str, str]
    file: ConfigFile | None
    tables: Sequence[str]

    def resolve(self, settings: Iterable[Setting]) -> dict[str, Value]:
        """A checked value for each, by name. Raises ConfigError that says what to write instead."""
        return {setting.name: self._checked(setting, self._find(setting)) for setting in settings}

    def _find(self, setting: Setting) -> Value:
        if setting.name in self.given:
            return Value(self.given[setting.name], Origin.COMMAND_LINE, setting.flag)
        if self.environ.get(setting.variable):
            return Value(self.environ[setting.variable], Origin.ENVIRONMENT, setting.variable)
        for table in ((setting.table,) if setting.table else self.tables) if self.file else ():
            assert self.file is not None
            if setting.name in self.file.table(table):
                where = self.file.where(table, setting.name)
                return Value(self.file.table(table)[setting.name], Origin.FILE, where)
        if setting.required:
            raise ConfigError(f"{setting.name} is missing: give {setting.flag} or set {setting.variable}")
        return Value(setting.default, Origin.DEFAULT, "")

    @staticmethod
    def _checked(setting: Setting, found: Value) -> Value:
        if found.origin is Origin.DEFAULT:
            return found
        try:
            value = setting.convert(found.value, strict=found.origin is Origin.FILE)
        except ValueError as error:
            named = f"{found.where}: {setting.name}" if found.origin is Origin.FILE else found.where
            raise ConfigError(f"{named}: {error}") from error
        return Value(value, found.origin, found.where)


def load(
    settings_type: type[T],
    service: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> T:
    """Parse once at start. ``service`` is the name of its table in the file. Exits with a message (status 2) for a bad
    command line; raises ConfigError for the rest."""
    settings = settings_of(settings_type)
    arguments = vars(_parser(settings_type, settings, service).parse_args(argv))
    given = {setting.name: arguments[setting.name] for setting in settings if arguments[setting.name] is not None}
    file = find_config(arguments["config"], environ)
    if file is not None:
        for table in dict.fromkeys((service, *(setting.table or service for setting in settings))):
            file.require_known(table, [each.name for each in settings if (each.table or service) == table])
    values = Sources(given, environ, file, (service, STACK)).resolve(settings)
    try:
        return composed(settings_type, values)
    except ValueError as error:
        raise ConfigError(f"{service}: {_shortened(str(error))}") from error


def _shortened(words: str) -> str:
    """Both ends of an error that repeats a long value."""
    half = MOST_CHARACTERS // 2
    return words if len(words) <= MOST_CHARACTERS else f"{words[:half]} ... {words[-half:]}"


def composed(struct: type[T], values: Mapping[str, Value]) -> T:
    """The settings as one value; a table in it is made, by its own ``of``, of what is no default. Raises ValueError
    where they exclude each other."""
    hints = get_type_hints(struct)
    given: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        if is_table(hints[name]):
            own = {each.name: values[each.name] for each in settings_of(hints[name])}
            chosen = {key: found.value for key, found in own.items() if found.origin is not Origin.DEFAULT}
            given[name] = hints[name].of(**chosen)
        elif name in values:
            given[name] = values[name].value
    return struct(**given)


def _parser(settings_type: type[msgspec.Struct], settings: Sequence[Setting], service: str) -> argparse.ArgumentParser:
    prog = f"python -m services.{service.replace('-', '_')}"
    parser = argparse.ArgumentParser(prog=prog, description=(settings_type.__doc__ or "").strip())
    parser.add_argument(
        "--config", metavar="FILE", help=f"configuration file; by default {FILE_NAME}, where there is one"
    )
    for setting in settings:
        default = "required" if setting.required else f"default {setting.default_text or repr(setting.default)}"
        text = f"{setting.explanation} ({default}; {setting.variable})"
        parser.add_argument(setting.flag, dest=setting.name, help=text.replace("%", "%%"), metavar="VALUE")
    return parser
