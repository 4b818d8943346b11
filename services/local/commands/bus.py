"""``slackwater bus``: who is let in to a bus, and what each role may do there."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from services.local.commands.output import stdout_console
from services.local.commands.parameters import DataDirOption, JsonOption, show
from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.data_dir import DataDir, StackFile
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.bus.permissions import BusRole, Permissions, permissions_of
from shared.errors import StackError

SERVER = "nats-server"
FolderArgument = Annotated[Path, typer.Argument(file_okay=False, help="Where they are kept.", show_default=False)]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="Repeatable: a name or address by which clients reach the server.", show_default=False),
]

bus_app = typer.Typer(no_args_is_help=True)


@bus_app.callback()
def bus() -> None:
    """Who is let in to a bus. A stack of slackwater up makes all of this for itself."""


@bus_app.command()
def init(folder: FolderArgument, host: HostOption = None) -> None:
    """Make an NKey for each role, a certificate for the server, and what the server has to know, into a folder.

    What is there already is kept, so that a certificate that is about to end, or lacks a name, can be made anew. It is
    for the names that it had, too.
    """
    kept = BusFolder(folder)
    kept.ensure(["localhost", "127.0.0.1", *(host or [])])
    print(
        f"{folder} has what lets processes into a bus at {', '.join(kept.hosts)}\n"
        f"server    auth.conf, server.pem, server-key.pem: include and tls in nats-server's configuration\n"
        f"clients   ca.pem and ROLE.nk of their own role: SLACKWATER_NATS_CREDS\n"
        f"secret    all of it but ca.pem and server.pem; ca-key.pem stays here"
    )


@bus_app.command()
def rotate(
    folder: Annotated[
        Path | None,
        typer.Argument(file_okay=False, help="That of init; by default that of the running stack.", show_default=False),
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    finish: Annotated[
        bool, typer.Option("--finish", help="Of a folder: let in none any more but those with the new keys.")
    ] = False,
) -> None:
    """Replace the NKey of each role, without a stop.

    A running stack is told by this command itself. For other servers it takes two turns: after the first, give the
    server auth.conf and the processes their seeds, and let the server reload; then --finish, and the same again for
    auth.conf. Who is connected with an old key then connects anew with the new one.
    """
    if folder is None:
        _rotate_running(DataDir(data_dir))
        return
    kept = BusFolder(folder)
    if not kept.exists():
        raise StackError(f"{folder} is none of slackwater bus init")
    if finish:
        kept.finish_rotation()
        print(f"{kept.auth} lets in the present keys alone: give it to the server, and let it reload")
        return
    kept.use(kept.begin_rotation())
    print(f"{kept.auth} lets in old and new keys, and the seeds are new: give them out, then --finish")


@bus_app.command()
def roles(as_json: JsonOption = False) -> None:
    """Show which subjects each role may send to and listen to."""
    show({role: permissions_of(role) for role in BusRole}, as_json, _print_roles)


def _rotate_running(data_dir: DataDir) -> None:
    stack = data_dir.read_stack()
    folder = BusFolder(data_dir.bus_folder)
    pid = _own_server(stack)
    if pid is None or not folder.exists():
        raise StackError(f"the bus of this stack, {stack.bus.shown}, is not its own: rotate where its keys were made")
    seeds = folder.begin_rotation()
    _reload(pid)
    folder.use(seeds)
    folder.finish_rotation()
    _reload(pid)
    print(f"each role has a new key; who was connected with an old one connects anew ({stack.bus.shown})")


def _own_server(stack: StackFile) -> int | None:
    """Its process id."""
    entry = stack.processes.get(SERVER)
    return None if entry is None else entry.pid


def _reload(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise StackError(f"{SERVER} (pid {pid}) cannot be told to reload: {error.strerror}") from error


def _print_roles(found: dict[BusRole, Permissions]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("role", "may send to", "may listen to"):
        table.add_column(column, overflow="fold")
    for role, may in found.items():
        table.add_row(role, "\n".join(may.publish), "\n".join(may.subscribe))
    stdout_console().print(table)
