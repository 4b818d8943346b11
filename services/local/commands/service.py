"""``slackwater service install``: a systemd unit for a stack."""

import getpass
import os
from pathlib import Path
from typing import Annotated

import typer

from services.local.commands.parameters import ConfigOption
from services.local.stack.catalogue import stack_options
from services.local.stack.systemd_unit import ENVIRONMENT, SystemdUnit, installed_program, unit_path
from shared.errors import ConfigError, StackError
from shared.settings.config_file import user_config

service_app = typer.Typer(no_args_is_help=True)


@service_app.callback()
def service() -> None:
    """Run a stack as a service of this machine."""


@service_app.command()
def install(
    *,
    user: Annotated[
        bool, typer.Option("--user/--system", help="Of the user's own systemd, or of the machine's, as this user.")
    ] = True,
    name: Annotated[str, typer.Option(help="Of the unit.")] = "slackwater",
    config: ConfigOption = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Where the stack keeps its store and its logs.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the unit, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a unit that is there and is another.")] = False,
) -> None:
    """Write a systemd unit that runs slackwater up; say what was done, what to do next, and how to undo it.

    It takes the configuration file and the data directory that slackwater up would take here, and runs in this folder.
    Nothing is started.
    """
    environment = user_config(os.environ).parent / ENVIRONMENT
    unit = _unit(user, name, config, data_dir, environment)
    path = unit_path(name, user, user_config(os.environ).parent.parent)
    if print_only:
        print(unit.text(), end="")
        return
    _write(path, unit.text(), force)
    print("\n".join(_next_steps(path, unit)))


def _unit(is_user: bool, name: str, config: str | None, data_dir: Path | None, environment: Path) -> SystemdUnit:
    try:
        options = stack_options({} if data_dir is None else {"data_dir": data_dir}, config, os.environ)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    folder = options.data_dir.expanduser().absolute()
    owner = None if is_user else getpass.getuser()
    drain_s = options.drain_s + max(model.executor_drain_s for model in options.models)
    return SystemdUnit(name, installed_program(), options.config_file, folder, Path.cwd(), environment, drain_s, owner)


def _write(path: Path, text: str, force: bool) -> None:
    """Raises StackError where another unit is there, or it cannot be written."""
    try:
        if path.exists() and path.read_text() != text and not force:
            raise StackError(f"{path} is there and is another unit; replace it with --force, or choose a --name")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise StackError(f"cannot write {path}: {error.strerror}; --print shows the unit") from error


def _next_steps(path: Path, unit: SystemdUnit) -> list[str]:
    scope, journal = ("systemctl", "journalctl") if unit.user else ("systemctl --user", "journalctl --user")
    return [
        f"wrote     {path}",
        f"start     {scope} daemon-reload && {scope} enable --now {unit.name}",
        *([] if unit.user else ["at boot   loginctl enable-linger"]),
        f"watch     {journal} -u {unit.name} -f; slackwater status --data-dir {unit.data_dir}",
        f"keys      SLACKWATER_API_KEY=... in {unit.environment} (chmod 600), if the stack is to have one from there",
        f"undo      {scope} disable --now {unit.name}; rm {path}; {scope} daemon-reload",
    ]
