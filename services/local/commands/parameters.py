"""Command line parameters that several commands share, and how they print what they found."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from services.local.stack.data_dir import bus_at, stack_on
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import ConfigError
from shared.json_text import json_text
from shared.settings.config_file import STACK, find_config

Found = TypeVar("Found")


def _configured(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """What the configuration file has, where neither command line nor environment name anything."""
    name = param.name or ""
    source = ctx.get_parameter_source(name)
    if ctx.resilient_parsing or source is None or source.name != "DEFAULT":
        return value
    file = find_config(None, os.environ)
    found = file.table(STACK).get(name) if file else None
    if file is not None and not isinstance(found, str | None):
        raise ConfigError(f"{file.where(STACK, name)}: {name} is {found!r}, and has to be a string")
    found = found or value
    return Path(found) if isinstance(value, Path) and found is not None else found


def _unless_outdone(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """A URL of the environment gives way to a bus or a data directory that the command line names."""
    sources = [ctx.get_parameter_source(name) for name in (param.name or "", "nats", "data_dir")]
    url, *others = [source.name if source else "" for source in sources]
    return None if url == "ENVIRONMENT" and "COMMANDLINE" in others else value


ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Configuration file, else SLACKWATER_CONFIG, ./slackwater.toml or the user's own; '' reads none.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path,
    typer.Option(
        envvar="SLACKWATER_DATA_DIR",
        file_okay=False,
        callback=_configured,
        help="Where the stack keeps its store and its logs.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NatsOption = Annotated[
    str | None,
    typer.Option(
        envvar="SLACKWATER_NATS",
        callback=_configured,
        help="The stack's bus; by default that of the configuration file, else of the data directory's stack.",
    ),
]
NatsCredsOption = Annotated[
    str | None,
    typer.Option(
        envvar="SLACKWATER_NATS_CREDS",
        callback=_configured,
        help="Of that bus: the operator's NKey seed or .creds file, or the folder with it.",
    ),
]
NatsCaOption = Annotated[
    str | None,
    typer.Option(
        envvar="SLACKWATER_NATS_CA",
        callback=_configured,
        help="Of that bus: who signs its certificate, a PEM file; by default ca.pem beside the credentials.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        envvar="SLACKWATER_URL",
        callback=_unless_outdone,
        help="The server; by default the stack of the data directory.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusOptions:
    """Which stack a command asks over its bus."""

    data_dir: DataDirOption = DEFAULT_DATA_DIR
    nats: NatsOption = None
    nats_creds: NatsCredsOption = None
    nats_ca: NatsCaOption = None

    @property
    def asked(self) -> BusAddress | None:
        """None where it is that of the data directory's stack."""
        if not self.nats:
            return None
        return BusAddress(self.nats, self.nats_creds or "", self.nats_ca or "", BusRole.OPERATOR)

    def bus(self, name: str) -> AbstractAsyncContextManager[Bus]:
        """``name``: of who asks. Raises StackError where none answers."""
        return bus_at(stack_on(self.data_dir, self.asked)[1], name)


def show(found: Found, as_json: bool, print_it: Callable[[Found], None]) -> None:
    """What a command found, as JSON or as people read it."""
    if as_json:
        print(json_text(found))
    else:
        print_it(found)
