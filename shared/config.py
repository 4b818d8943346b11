"""Settings of a process: one frozen struct, from command line over environment over defaults.

Each field ``kv_blocks: Annotated[int, Meta(description=...)] = 4096`` is set by ``--kv-blocks`` or by
``SLACKWATER_KV_BLOCKS``, checked by its type and bounds, and explained by ``--help``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import msgspec

from shared.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

ENV_PREFIX = "SLACKWATER_"


def load(
    settings_type: type[T],
    prog: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> T:
    """Parse once at start. Exits with a message (status 2) for a bad command line; raises ConfigError for the rest."""
    arguments = vars(_parser(settings_type, prog).parse_args(argv))
    given = {}
    for field in msgspec.structs.fields(settings_type):
        variable = ENV_PREFIX + field.name.upper()
        if arguments[field.name] is not None:
            given[field.name] = arguments[field.name]
        elif environ.get(variable):
            given[field.name] = environ[variable]
        elif field.required:
            raise ConfigError(f"{field.name} is missing: give --{_flag(field.name)} or set {variable}")
    try:
        return msgspec.convert(given, settings_type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{prog}: {error}") from error


def _parser(settings_type: type[msgspec.Struct], prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=(settings_type.__doc__ or "").strip())
    hints = get_type_hints(settings_type, include_extras=True)
    for field in msgspec.structs.fields(settings_type):
        default = "required" if field.required else f"default {field.default!r}"
        text = f"{_description(hints[field.name])} ({default}; {ENV_PREFIX}{field.name.upper()})"
        parser.add_argument(f"--{_flag(field.name)}", dest=field.name, help=text.replace("%", "%%"), metavar="VALUE")
    return parser


def _description(hint: Any) -> str:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, msgspec.Meta) and extra.description:
            return extra.description
    return ""


def _flag(name: str) -> str:
    return name.replace("_", "-")
