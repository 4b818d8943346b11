"""The ``slackwater`` command. What a command needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from services.executor.prepare_model import DEFAULT_MODEL
from services.local.batch_cli import batch_app
from services.local.command_group import CommandGroup, DeferredCommand
from services.local.options import DEFAULT_DATA_DIR, DEFAULT_PORT, ENGINES, StackOptions
from services.local.parameters import DataDirOption, JsonOption, UrlOption, one_of
from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES
from shared.scheduling.kv_policy import KV_POLICIES
from shared.scheduling.online_order import ONLINE_ORDERS
from shared.scheduling.presets import PRESETS

if TYPE_CHECKING:
    from services.local.status import Status

LOG_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(
    cls=CommandGroup,
    help="Serve online and offline LLM requests on the same accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(batch_app, name="batch", help="Submit a file of offline requests, watch it, fetch its results.")


def main() -> None:
    """The console script."""
    command()


@app.command()
def up(
    model: Annotated[str, typer.Option(help="A known model, a local folder or a Hugging Face hub id.")] = DEFAULT_MODEL,
    engine: Annotated[str, typer.Option(help=" or ".join(ENGINES), callback=one_of("engine", ENGINES))] = "torch",
    host: Annotated[str, typer.Option(help="The address that the gateway listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port.")] = DEFAULT_PORT,
    executors: Annotated[int, typer.Option(min=1, max=64, help="Model replicas, a process each.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each engine.")] = None,
    kv_blocks: Annotated[
        int | None, typer.Option(min=1, help="KV blocks of each engine; else sized by memory.")
    ] = None,
    kv_policy: Annotated[
        str | None,
        typer.Option(
            help="lru, bidirectional: both kinds share KV blocks, or keep-resident; by default the preset's own.",
            callback=one_of("KV policy", KV_POLICIES),
        ),
    ] = None,
    sim_model: Annotated[
        str | None, typer.Option(help="The model that the sim engine times.", callback=one_of("model", ARCHITECTURES))
    ] = None,
    sim_device: Annotated[
        str | None, typer.Option(help="The GPU that the sim engine stands for.", callback=one_of("device", DEVICES))
    ] = None,
    preset: Annotated[str, typer.Option(help=", ".join(PRESETS), callback=one_of("preset", PRESETS))] = "hygen",
    utility_ratio: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="The share of offline requests chosen by shared prefix, not by age."),
    ] = None,
    online_order: Annotated[
        str,
        typer.Option(
            help="fcfs, or vtc: fair between clients, by API key or user.",
            callback=one_of("online order", ONLINE_ORDERS),
        ),
    ] = "fcfs",
    budget_ms: Annotated[float | None, typer.Option(min=0.001, help="A fixed latency budget of each step.")] = None,
    offline_qps: Annotated[
        float | None, typer.Option(min=0.001, help="hygen-star: offline requests per second of each executor.")
    ] = None,
    target_tbt_ms: Annotated[
        float | None, typer.Option(min=0.001, help="The time between tokens that online requests are to keep.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(help="Keep this SLO, as ttft_p99<=800ms or tbt_mean<=1.05x of online work alone; repeatable."),
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: Annotated[str | None, typer.Option(help="An existing NATS server with JetStream.")] = None,
    log_level: Annotated[str, typer.Option(help=", ".join(LOG_LEVELS), callback=one_of("level", LOG_LEVELS))] = "info",
) -> None:
    """Start a whole stack on this machine and keep it running until Ctrl-C."""
    from loadgen.errors import SloError
    from loadgen.slo import parse_slo
    from services.local.deadlines import deadlines_of
    from services.local.progress import stderr_progress
    from services.local.supervisor import Supervisor

    chosen = PRESETS[preset]
    if sum(bool(given) for given in (budget_ms, target_tbt_ms, slo)) > 1:
        raise typer.BadParameter("give one of --budget-ms, --target-tbt-ms and --slo, not two")
    if slo and not (chosen.uses_latency_budget or chosen.uses_deadlines):
        raise typer.BadParameter(f"preset {preset} has no latency budget to keep an SLO with: leave --slo out")
    try:
        chosen.offline_rate(offline_qps)
        chosen.require_online_order(online_order)
        slos = [parse_slo(expr) for expr in slo or ()]
        ttft_slo_ms, tpot_slo_ms = deadlines_of(slos) if chosen.uses_deadlines else (None, None)
    except (ValueError, SloError) as error:
        raise typer.BadParameter(str(error)) from error
    options = StackOptions(
        model=model,
        engine=engine,
        host=host,
        port=port,
        executors=executors,
        threads=threads,
        kv_blocks=kv_blocks,
        kv_policy=kv_policy,
        sim_model=sim_model,
        sim_device=sim_device,
        preset=preset,
        utility_ratio=utility_ratio,
        online_order=online_order,
        budget_ms=budget_ms,
        offline_qps=offline_qps,
        target_tbt_ms=target_tbt_ms,
        ttft_slo_ms=ttft_slo_ms,
        tpot_slo_ms=tpot_slo_ms,
        slos=tuple(each.expr for each in slos) if chosen.uses_latency_budget else (),
        data_dir=data_dir,
        nats=nats,
        log_level=log_level,
    )

    async def run() -> int:
        return await Supervisor(options, stderr_progress(), _announce).run()

    raise typer.Exit(asyncio.run(run()))


@app.command()
def status(
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: Annotated[str | None, typer.Option(help="Ask the services on this bus instead of a local stack's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every process of a stack, its executors and its queues."""
    import msgspec

    from services.local.status import read_status, show

    found: Status = asyncio.run(read_status(data_dir, nats))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        show(found)


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
    from services.local.api_client import ApiClient
    from services.local.chat import ChatOptions, Conversation, default_model
    from services.local.target import server_url

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
    print(json.dumps({"version": number}) if as_json else f"slackwater {number}")


def _load_replay() -> Callable[..., Any]:
    from loadgen.cli import replay

    return replay


def _load_simulate() -> Callable[..., Any]:
    from services.profiler.simulation.cli import simulate

    return simulate


def _load_profile() -> Callable[..., Any]:
    from services.local.profile_cli import profile

    return profile


def _load_predict() -> Callable[..., Any]:
    from services.local.predict_cli import predict

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
