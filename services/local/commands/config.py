"""``slackwater config show | init | reference``: what is configured by what, a commented file of all defaults, and the
reference page."""

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer
from rich.table import Table

from services.local.commands import parameters
from services.local.commands.output import stdout_console
from services.local.commands.parameters import ConfigOption, JsonOption
from services.local.stack.catalogue import NAME, SERVICES, STRATEGY, all_values, read_config, shown_value, tables
from shared.errors import ConfigError
from shared.scheduling.strategy import Strategy
from shared.settings.config import Origin, Value
from shared.settings.config_file import FILE_NAME, MODELS, OWN_TABLES, STACK, ConfigFile
from shared.settings.setting import Setting

WIDTH = 100
PREAMBLE = f"""\
# Slackwater's configuration: {FILE_NAME} in the working directory, or the file that --config or SLACKWATER_CONFIG
# names. What is commented out has its default. Command line and environment come before this file: port is --port
# and SLACKWATER_PORT as well.
"""
STACK_ABOUT = "The stack as a whole; what a service has too, it takes from here."
STANDARD_OUTPUT = Path("-")
HIDDEN = "(hidden)"

config_app = typer.Typer(no_args_is_help=True)


class ShownSetting(msgspec.Struct, frozen=True):
    """One setting as it would be used now. ``where``: the variable, or file and line; empty for a default."""

    table: str
    name: str
    value: str | int | float | bool
    origin: str
    where: str


class ShownConfig(msgspec.Struct, frozen=True):
    """What ``config show --json`` prints. ``file`` is None where there is none."""

    file: str | None
    settings: list[ShownSetting]


@config_app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every setting that a stack started here would have, and where it comes from."""
    file = read_config(config, os.environ)
    values = all_values(file, os.environ)
    shown = [_shown(table, setting, values[table][setting.name]) for table in values for setting in tables()[table]]
    for index in range(len(file.models) if file else 0):
        shown += _of_model(cast(ConfigFile, file), index)
    parameters.show(ShownConfig(str(file.path) if file else None, shown), as_json, _print_table)


@config_app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to; - is stdout.", allow_dash=True)] = Path(
        FILE_NAME
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a configuration file with every setting, its meaning and its default, commented out."""
    text = config_template()
    if file == STANDARD_OUTPUT:
        print(text, end="")
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} is there already; replace it with --force, or name another file") from None
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    print(f"wrote {file}; slackwater config show tells what it makes of it")


@config_app.command("reference")
def show_reference() -> None:
    """Print the reference of all settings as Markdown."""
    print("\n".join(reference()).rstrip())


def _shown(table: str, setting: Setting, found: Value) -> ShownSetting:
    value = found.value if isinstance(found.value, str | int | float | bool) else str(found.value)
    if setting.is_secret and value:
        value = HIDDEN
    elif isinstance(value, str):
        value = shown_value(setting.name, value)
    return ShownSetting(table, setting.name, value, found.origin, found.where)


def _of_model(file: ConfigFile, index: int) -> list[ShownSetting]:
    """What one of several models has of its own."""
    own, values, found = file.models[index], all_values(file.of_model(index), os.environ), []
    if NAME in own:
        where = file.where(MODELS, str(index), NAME)
        found.append(ShownSetting(f"{MODELS}.{index}", NAME, own[NAME], Origin.FILE, where))
    for table in (STACK, *OWN_TABLES):
        names = own.get(table, {}) if table in OWN_TABLES else own
        label = f"{MODELS}.{index}.{table}" if table in OWN_TABLES else f"{MODELS}.{index}"
        settings = [setting for setting in tables()[table] if setting.name in names]
        found += [_shown(label, setting, values[table][setting.name]) for setting in settings]
    return found


def _print_table(whole: ShownConfig) -> None:
    """What differs from the defaults stands out."""
    console = stdout_console()
    console.print(f"file: {whole.file or 'none'}", soft_wrap=True)
    table = Table("table", "setting", "value", "from", box=None, header_style="bold")
    for shown in whole.settings:
        style = "" if shown.origin == Origin.DEFAULT else "bold"
        table.add_row(shown.table, shown.name, toml_value(shown.value), shown.where or shown.origin, style=style)
    console.print(table)


def config_template() -> str:
    """A file with every setting, its meaning and its default, all of them commented out."""
    parts = [PREAMBLE]
    for name, settings in tables().items():
        lines = [*_comment(about(name)), f"[{name}]"]
        for setting in settings:
            values = "" if setting.choices else f" ({values_text(setting)})"
            lines += ["", *_comment(setting.explanation + values)]
            lines.append(f"#{setting.name} = {toml_value(setting.default)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def reference() -> Iterator[str]:
    """A section of Markdown for each table: the end of docs/configuration.md."""
    for name, settings in tables().items():
        yield f"### [{name}]\n\n{about(name)}\n"
        yield "| setting | default | values | meaning |\n| --- | --- | --- | --- |"
        for setting in settings:
            default = setting.default_text if setting.is_by_base else f"`{toml_value(setting.default)}`"
            cells = (f"`{setting.name}`", default, values_text(setting), setting.description)
            yield f"| {' | '.join(cells)} |"
        yield ""


def about(table: str) -> str:
    """What a table's settings are of."""
    of = Strategy if table == STRATEGY else SERVICES.get(table)
    text = STACK_ABOUT if of is None else (of.__doc__ or "")
    return " ".join(text.split())


def values_text(setting: Setting) -> str:
    """The type with its bounds, or the known values."""
    if setting.choices:
        return ", ".join(setting.choices)
    meta = setting.meta
    bounds = {"at least": meta.ge, "over": meta.gt, "at most": meta.le, "below": meta.lt}
    words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    kind = {"int": "integer", "float": "number", "bool": "true or false", "Path": "folder"}.get(
        setting.type.__name__, "list of texts" if setting.is_list else "text"
    )
    return ", ".join([kind, *words])


def toml_value(value: Any) -> str:
    """As TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False) if isinstance(value, str | Path) else str(value)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False)]
