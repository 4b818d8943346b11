"""The ``slackwater`` command. What a command needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from services.local.command_group import FAILURE, CommandGroup, DeferredCommand
from services.local.commands.batch.cli import batch_app
from services.local.commands.config.cli import config_app
from services.local.commands.drain_cli import drain, undrain
from services.local.commands.key import key_app
from services.local.commands.parameters import ConfigOption, DataDirOption, JsonOption, NatsOption, UrlOption
from services.local.commands.setting_options import Given, with_settings
from services.local.stack.catalogue import STACK_SETTINGS, stack_options
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.errors import ConfigError
from shared.json_text import json_text

if TYPE_CHECKING:
    from services.local.commands.status.status import Status

app = typer.Typer(
    cls=CommandGroup,
    help="Serve online and offline LLM requests on the same accelerators.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(batch_app, name="batch", help="Submit a file of offline requests, watch it, fetch its results.")
app.add_typer(key_app, name="key", help="Make, list and revoke the API keys that clients need.")
app.add_typer(config_app, name="config", help="Show what is configured and by what, or write a configuration file.")


def main() -> None:
    """The console script."""
    command(prog_name="slackwater")


@app.command()
@with_settings(STACK_SETTINGS)
def up(given: Given, config: ConfigOption = None) -> None:
    """Start a whole stack on this machine and keep it running until Ctrl-C.

    Each option can stand in a configuration file as well, or in the environment: --port as SLACKWATER_PORT. See
    slackwater config --help.
    """
    from services.local.stack.progress import stderr_progress
    from services.local.stack.supervisor import Supervisor

    try:
        options = stack_options(given, config, os.environ)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error

    async def run() -> int:
        return await Supervisor(options, stderr_progress(), _announce).run()

    raise typer.Exit(asyncio.run(run()))


@app.command()
@with_settings(STACK_SETTINGS)
def doctor(given: Given, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Tell whether slackwater up would work here with these options, and what to do where it would not.

    The exit status is 1 if something would stop it.
    """
    from services.local.doctor.diagnosis import diagnose, show

    diagnosis = diagnose(given, config, os.environ)
    if as_json:
        print(json_text(diagnosis))
    else:
        show(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else FAILURE)


@app.command()
def status(
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every process of a stack, its executors and its queues."""
    from services.local.commands.status.status import read_status, show

    found: Status = asyncio.run(read_status(data_dir, nats))
    if as_json:
        print(json_text(found))
    else:
        show(found)


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame, as where stdout is no terminal.")] = False,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
) -> None:
    """Watch a stack: load, step times, what online users get, offline throughput and batches. Ctrl-C leaves."""
    from services.local.commands.status.top import run_top

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_top(data_dir, nats, once or not sys.stdout.isatty()))


app.command()(drain)
app.command()(undrain)


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="Ask this and leave; without it, a conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="By default the first that the server lists.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 512,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 is greedy; 1 is the model's own spread.")
    ] = 0.0,
    url: UrlOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
) -> None:
    """Chat with the model; the answer is streamed. Ctrl-C stops an answer, Ctrl-D leaves."""
    from services.local.commands.api_client import ApiClient
    from services.local.commands.chat import ChatOptions, Conversation, default_model
    from services.local.commands.target import server_url

    with ApiClient(server_url(url, data_dir)) as client:
        conversation = Conversation(
            client, ChatOptions(model or default_model(client), system, max_tokens, temperature)
        )
        if message is None:
            conversation.run()
        else:
            conversation.ask(message)


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Show the version."""
    number = importlib.metadata.version("slackwater")
    print(json_text({"version": number}) if as_json else f"slackwater {number}")


def _load_replay() -> Callable[..., Any]:
    from loadgen.cli import replay

    return replay


def _load_simulate() -> Callable[..., Any]:
    from services.profiler.simulation.cli import simulate

    return simulate


def _load_profile() -> Callable[..., Any]:
    from services.local.commands.profile.cli import profile

    return profile


def _load_predict() -> Callable[..., Any]:
    from services.local.commands.predict.cli import predict

    return predict


def _announce(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


command: Any = get_command(app)
command.add_command(
    DeferredCommand("replay", "Replay a production trace against any OpenAI-compatible server.", _load_replay)
)
command.add_command(
    DeferredCommand("simulate", "Replay a production trace on a named GPU and model in virtual time.", _load_simulate)
)
command.add_command(
    DeferredCommand("predict", "Say how long a batch takes, by the fitted latency model.", _load_predict)
)
command.add_command(DeferredCommand("profile", "Find the latency budget that keeps your SLOs.", _load_profile))
