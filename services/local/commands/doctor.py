"""``slackwater doctor``."""

import os

import typer
from rich.console import Console
from rich.table import Table

from services.local.command_group import FAILURE
from services.local.commands.parameters import ConfigOption, JsonOption, show
from services.local.doctor.check import State
from services.local.doctor.diagnosis import Diagnosis, diagnose
from services.local.stack.catalogue import STACK_SETTINGS
from shared.settings.command_options import Given, with_settings

MARKS = {State.OK: ("ok", "green"), State.WARNING: ("warning", "yellow"), State.FAILED: ("failed", "red")}


@with_settings(STACK_SETTINGS)
def doctor(given: Given, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Tell whether slackwater up would work here with these options, and what to do where it would not.

    The exit status is 1 if something would stop it.
    """
    diagnosis = diagnose(given, config, os.environ)
    show(diagnosis, as_json, _print_checks)
    raise typer.Exit(0 if diagnosis.ok else FAILURE)


def _print_checks(diagnosis: Diagnosis) -> None:
    """A line for each check, with what to do below those that need it."""
    table = Table(box=None, show_header=False)
    for check in diagnosis.checks:
        mark, style = MARKS[check.state]
        table.add_row(check.name, mark, check.found, style=None if check.state is State.OK else style)
        if check.remedy:
            table.add_row("", "", f"-> {check.remedy}")
    Console(highlight=False, markup=False).print(table)
