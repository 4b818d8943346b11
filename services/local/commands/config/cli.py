"""``slackwater config show | init | reference``."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from services.local.commands import parameters
from services.local.commands.config.text import config_template, reference, toml_value
from services.local.commands.parameters import ConfigOption, JsonOption
from services.local.stack.catalogue import all_values, read_config, tables
from shared.errors import ConfigError
from shared.settings.config import Origin, Value
from shared.settings.config_file import FILE_NAME
from shared.settings.setting import Setting

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
    return ShownSetting(table, setting.name, value, found.origin, found.where)


def _print_table(whole: ShownConfig) -> None:
    """What differs from the defaults stands out."""
    console = Console(highlight=False, markup=False)
    console.print(f"file: {whole.file or 'none'}", soft_wrap=True)
    table = Table("table", "setting", "value", "from", box=None, header_style="bold")
    for shown in whole.settings:
        style = "" if shown.origin == Origin.DEFAULT else "bold"
        table.add_row(shown.table, shown.name, toml_value(shown.value), shown.where or shown.origin, style=style)
    console.print(table)
