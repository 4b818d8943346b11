"""``slackwater up``."""

import asyncio
import os

import typer

from services.local.commands.parameters import ConfigOption
from services.local.commands.status.top import show_essentials
from services.local.stack.catalogue import STACK_SETTINGS, stack_options
from services.local.stack.progress import Progress, announce
from services.local.stack.supervisor import Supervisor
from shared.errors import ConfigError
from shared.settings.command_options import Given, with_settings


@with_settings(STACK_SETTINGS)
def up(given: Given, config: ConfigOption = None) -> None:
    """Start a whole stack on this machine and keep it running until Ctrl-C.

    Each option can stand in a configuration file as well, or in the environment: --port as SLACKWATER_PORT. See
    slackwater config --help.
    """
    try:
        options = stack_options(given, config, os.environ)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    progress = Progress()
    supervisor = Supervisor(options, progress, announce, show_essentials)
    raise typer.Exit(asyncio.run(supervisor.run()))
