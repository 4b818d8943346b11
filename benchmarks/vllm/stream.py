"""One stream at a time on an idle machine: ``slackwater up`` beside vLLM's own server.

All servers run at once, with the same model and number of threads and nothing else set, and answer requests of equal
lengths in turns, so that all of them meet the same disturbances, but not each other: between two turns all are idle.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from benchmarks.engine.batches import prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from benchmarks.vllm.servers import ON_TORCH, ON_VLLM, PLAIN, System
from benchmarks.vllm.workload import Setting
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.records import RequestRecord
from loadgen.errors import ServerError
from loadgen.report.metrics import LatencySamples

TIMEOUT_S = 120.0
MAX_FAILED_SHARE = 0.1  # of all requests
SETTLED_S = 1.5  # after a server's last token: a worker of vLLM spins for a second, on a core that others need
COMPARED: Sequence[System] = (PLAIN, ON_VLLM, ON_TORCH)  # the others with the first


def stream_request(model: str, prompt: list[int], max_tokens: int) -> StreamRequest:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    return StreamRequest("/v1/completions", msgspec.json.encode(body | {"stream": True}))


async def answered(client: OpenAIClient, request: StreamRequest) -> tuple[float, float]:
    """TTFT and mean TBT in ms. Raises ServerError."""
    record = RequestRecord(due_s=time.perf_counter())
    await client.stream(request, record)
    if record.error is not None:
        raise ServerError(record.error)
    samples = LatencySamples.of([record])
    return samples.ttft_ms[0], samples.tpot_ms[0]


async def measured(
    setting: Setting, requests: list[StreamRequest], folder: Path
) -> tuple[list[list[tuple[float, float]]], list[str]]:
    """Of each system, for each request but the first that all of them answered; and which others failed, and why.
    Raises ServerError where more than ``MAX_FAILED_SHARE`` do."""
    path = model_folder(setting.model)
    async with AsyncExitStack() as started:
        clients = []
        for system in COMPARED:
            (own := folder / system.name).mkdir()
            server = await started.enter_async_context(system.serving(setting, path, own))
            clients.append(await started.enter_async_context(OpenAIClient(server.url, TIMEOUT_S)))
        times: list[dict[int, tuple[float, float]]] = [{} for _ in clients]  # by the request's number
        failed: list[str] = []
        for number, request in enumerate(requests):
            for place in range(len(clients)):
                turn = (number + place) % len(clients)
                await asyncio.sleep(SETTLED_S)
                try:
                    times[turn][number] = await answered(clients[turn], request)
                except ServerError as error:
                    failed.append(f"{COMPARED[turn].name}, request {number}: {error}")
                    if len(failed) > MAX_FAILED_SHARE * len(requests) * len(clients):
                        raise ServerError(f"{len(failed)} requests failed: {'; '.join(failed)}") from error
    whole = [number for number in range(1, len(requests)) if all(number in own for own in times)]
    return [[own[number] for number in whole] for own in times], failed


@benchmark
def main(
    prompt_tokens: int = 64,
    output_tokens: Annotated[int, typer.Option(min=2)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="To each server.")] = 20,
    threads: int = cpu_count(),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    setting = Setting(online="", offline="", model=model, threads=threads)
    prompts = [prompt_of(prompt_tokens, number) for number in range(requests + 1)]
    streams = [stream_request(model, prompt, output_tokens) for prompt in prompts]
    with TemporaryDirectory() as folder:
        times, failed = asyncio.run(measured(setting, streams, Path(folder)))
    if failed:
        yield f"Requests that failed, and that are left out of every server's figures: {'; '.join(failed)}."
    for system, own in zip(COMPARED, times, strict=True):
        ttft, tbt = zip(*own, strict=True)
        ratios = [(one[0] / first[0], one[1] / first[1]) for one, first in zip(own, times[0], strict=True)]
        of_ttft, of_tbt = (median(each) for each in zip(*ratios, strict=True))
        yield {
            "system": system.name,
            **formatted(".1f", {"TBT ms": fmean(tbt), "least": min(tbt), "most": max(tbt), "TTFT ms": fmean(ttft)}),
            **formatted(".2f", {"TBT, of vLLM's": of_tbt, "TTFT, of vLLM's": of_ttft}),
        }
