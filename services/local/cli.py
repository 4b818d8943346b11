"""The ``slackwater`` command."""

from typing import Annotated, Any, ClassVar

import typer
from typer.main import get_command

from services.local.closed_streams import open_closed_streams
from services.local.command_group import CommandGroup

HERE = "services.local.commands"


class Commands(CommandGroup):
    """Each command with the line that the list of commands shows, and where it is."""

    deferred: ClassVar = {
        "up": ("Start a whole stack on this machine and keep it running.", f"{HERE}.up:up"),
        "doctor": (
            "Tell whether slackwater up would work here, and what to do where not.",
            "services.local.doctor.diagnosis:doctor",
        ),
        "status": ("Show every process of a stack, its executors and its queues.", f"{HERE}.status.table:status"),
        "top": ("Watch a stack: load, step times, latencies, offline throughput, batches.", f"{HERE}.status.top:top"),
        "drain": ("Give an executor no new requests; wait until those that it has have ended.", f"{HERE}.drain:drain"),
        "undrain": ("Let a drained executor take requests again.", f"{HERE}.drain:undrain"),
        "role": ("Say of which pool an executor is: strict, relaxed or mixed.", f"{HERE}.role:role"),
        "chat": ("Chat with the model; the answer is streamed.", f"{HERE}.chat:chat"),
        "batch": (
            "Submit a file of offline requests, watch it, fetch its results.",
            "services.local.batches.cli:batch_app",
        ),
        "service": ("Write a systemd unit that runs a stack.", f"{HERE}.service:service_app"),
        "key": (
            "Make, change, list and revoke the API keys that clients need; what they use.",
            f"{HERE}.key.cli:key_app",
        ),
        "bus": (
            "Make and replace what lets processes into a bus; say what each role may do.",
            f"{HERE}.bus:bus_app",
        ),
        "config": ("Show what is configured and by what, or write a configuration file.", f"{HERE}.config:config_app"),
        "replay": ("Replay a production trace against any OpenAI-compatible server.", f"{HERE}.replay:replay"),
        "simulate": (
            "Replay a production trace on a named GPU and model in virtual time.",
            "services.profiler.simulation.cli:simulate",
        ),
        "plan": ("Say how many GPUs keep your SLOs, and what offline work they do.", f"{HERE}.plan:plan"),
        "predict": (
            "Say how long a step takes with such requests in it, by the fitted latency model.",
            f"{HERE}.predict:predict",
        ),
        "profile": ("Find the latency budget that keeps your SLOs.", f"{HERE}.profile.cli:profile"),
        "data": ("List the public traces and sets of prompts behind the figures.", f"{HERE}.data:data_app"),
        "version": ("Show the version.", f"{HERE}.version:version"),
    }


app = typer.Typer(
    cls=Commands,
    help="Serve online and offline LLM requests on the same accelerators.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from services.local.commands.version import version

        version()
        raise typer.Exit


@app.callback()
def slackwater(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before a command."""


command: Any = get_command(app)


def main() -> None:
    """The console script."""
    open_closed_streams()
    command(prog_name="slackwater")
