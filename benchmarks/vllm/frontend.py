"""What the front end costs beside vLLM's: ``python -m benchmarks.vllm.frontend``.

vLLM's own API server and ``slackwater up`` serve one small model: a Llama of one layer of 64 with random weights and
SmolLM2's tokens, so that next to nothing is computed and what remains is work per token: HTTP, text, what passes
between processes, scheduling. With ``slackwater-vllm`` the step is vLLM's own too, the same work on both sides; with
``slackwater-sim`` the engine computes nothing and takes next to no time. Each is started alone, and asked by one
client, on the same cores.

TTFT is of short prompts, one after the other. Tokens/s are of so many streams at once, by the clock; the processor time
of a token is that of all processes of a server, by what they do. Of all turns the median.
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvloop

from benchmarks.gateway.frontend import Client, all_at_once, first_tokens
from benchmarks.harness.command import Results, Row, benchmark, model_folder, quantiles
from benchmarks.harness.stack import usage_of
from benchmarks.harness.tries import tried
from benchmarks.vllm.servers import ON_VLLM, Slackwater, System, Vllm
from benchmarks.vllm.workload import Setting
from loadgen.client.openai_client import OpenAIClient

INSTANT = "0.0001"  # time scale of the sim engine
CONFIG = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
STREAMS = [1, 16, 64, 256]
ROLES = ("HTTP", "bus", "engine", "rest")
HEADINGS = {"HTTP": "µs of a core a token: HTTP"}
FORMS = {"tokens/s": ",.0f", "tokens/event": ".2f"}
SYSTEMS: tuple[System, ...] = (Vllm("vllm", "fcfs"), ON_VLLM, Slackwater("slackwater-sim", "sim"))


def small_model(source: Path, folder: Path) -> None:
    """Make ``folder`` a model with the tokenizer of ``source`` whose step costs next to nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    config = AutoConfig.from_pretrained(source)
    config.update({**CONFIG, **HEADS})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def role_of(process: psutil.Process) -> str:
    """What a process of a server is for."""
    words = " ".join(process.cmdline())
    if "services.gateway" in words or "api_server" in words:
        return "HTTP"
    if "nats-server" in words:
        return "bus"
    return "engine" if "services.executor" in words or "VLLM::" in words else "rest"


async def turn(clients: Sequence[Client], max_tokens: int) -> dict[str, float]:
    """One completion of each client: what a row is made of."""
    children = {str(each.pid): each for each in psutil.Process().children(recursive=True)}  # a server is all of them
    with usage_of(children) as usage:
        num_tokens, num_events = await all_at_once(clients, max_tokens)
    cpu_us = dict.fromkeys(ROLES, 0.0)
    for pid, cpu_s in usage.cpu_s.items():
        cpu_us[role_of(children[pid])] += cpu_s / num_tokens * 1e6
    rates = {"tokens/s": num_tokens / usage.seconds, "tokens/event": num_tokens / num_events}
    return {**rates, **cpu_us, "all": sum(cpu_us.values())}


async def turns_of(port: int, model: str, num_streams: int, max_tokens: int, turns: int) -> list[dict[str, float]]:
    """Raises OSError where a stream is refused or cut."""
    clients = [await Client.connect(port, model) for _ in range(num_streams)]
    try:
        await turn(clients, 8)
        return [await turn(clients, max_tokens) for _ in range(turns)]
    finally:
        for client in clients:
            client.close()


async def measure(
    system: System, setting: Setting, path: Path, streams: Sequence[int], max_tokens: int, rounds: int, turns: int
) -> tuple[list[float], list[Row]]:
    """TTFTs in ms, fastest first, and a row for each number of streams; where a request fails, all of its number are
    measured again. Raises ServerError, and OSError where they fail again and again."""
    folder = Path(tempfile.mkdtemp(prefix=f"{system.name}-"))
    async with system.serving(setting, path, folder) as server:
        port = int(server.url.rsplit(":", 1)[1])
        async with OpenAIClient(server.url, 60.0) as client:
            model = json.loads(await client.get_bytes("/v1/models"))["data"][0]["id"]
        ttft_ms = await tried(lambda: first_tokens(port, model, rounds), f"{system.name}: TTFT")
        rows: list[Row] = []
        for num_streams in streams:
            made = partial(turns_of, port, model, num_streams, max_tokens, turns)
            done = await tried(made, f"{system.name}: {num_streams} streams")
            medians = {name: statistics.median(each[name] for each in done) for name in done[0]}
            cells = {HEADINGS.get(name, name): format(value, FORMS.get(name, ".0f")) for name, value in medians.items()}
            rows.append({"streams": str(num_streams), "": system.name, **cells})
    shutil.rmtree(folder)
    return ttft_ms, rows


@benchmark
def main(
    streams: list[int] = STREAMS,
    max_tokens: int = 200,
    rounds: Annotated[int, typer.Option(help="Requests for the TTFT.")] = 200,
    turns: Annotated[int, typer.Option(help="Of each number of streams.")] = 3,
) -> Results:
    os.environ["SLACKWATER_SIM_TIME_SCALE"] = INSTANT
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        small_model(model_folder(), Path(folder))
        setting = Setting(
            online="", offline="", model=folder, max_num_batched_tokens=2048, max_num_seqs=max(streams), kv_tokens=2**19
        )
        for system in SYSTEMS:
            times, measured = uvloop.run(measure(system, setting, Path(folder), streams, max_tokens, rounds, turns))
            yield {"": system.name, **quantiles(times, {"TTFT p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99})}
            rows += measured
    yield from sorted(rows, key=lambda row: int(row["streams"]))
