"""A batch alone, on a stack that is as it comes, beside vLLM's ``LLM.chat`` on the same lines.

Each has the same model and number of threads, and nothing else is set. A round has prompts of its own, so that none is
cached. Of a stack all counts from the upload until the batch is seen to be complete, of ``LLM.chat`` the call.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import asyncio
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from benchmarks.harness.local_stack import local_stack
from benchmarks.harness.whole_batch import run_batch
from benchmarks.vllm import chat
from benchmarks.vllm.chat import GREEDY, WARM_UP
from loadgen.client.openai_client import OpenAIClient
from loadgen.workload.backlog import load_backlog

ENDPOINT = "/v1/chat/completions"
TIMEOUT_S = 600.0
MAX_FAILED_SHARE = 0.01  # of a round's lines: their tokens do not count
Rates = list[float]  # output tokens/s of each round


async def batch_rates(engine: str, model: str, files: list[Path], threads: int) -> Rates:
    """Raises ServerError."""
    hello = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": WARM_UP}]}
    options = {"engine": engine, "model": model, "threads": threads}
    async with (
        local_stack(engine, files[0].parent, options) as data_dir,
        OpenAIClient(data_dir.read_stack().http_url, TIMEOUT_S) as client,
    ):
        await client.post_json(ENDPOINT, hello)
        return [await batch_rate(client, file) for file in files]


async def batch_rate(client: OpenAIClient, file: Path) -> float:
    start_s = time.perf_counter()
    batch = await run_batch(client, file, ENDPOINT, MAX_FAILED_SHARE)
    return float(batch["usage"]["output_tokens"]) / (time.perf_counter() - start_s)


def write_batch(file: Path, model: str, texts: list[str], max_tokens: int) -> Path:
    common = {"model": model, "max_tokens": max_tokens, **GREEDY}
    bodies = (common | {"messages": [{"role": "user", "content": text}]} for text in texts)
    lines = [{"custom_id": f"{n}", "method": "POST", "url": ENDPOINT, "body": body} for n, body in enumerate(bodies)]
    file.write_bytes(msgspec.json.Encoder().encode_lines(lines))
    return file


@benchmark
def main(
    prompts: Annotated[Path, typer.Option(help="As the backlog of slackwater replay: texts.")],
    lines: Annotated[int, typer.Option(help="Of a round.")] = 200,
    max_tokens: int = 64,
    rounds: int = 3,
    threads: int = cpu_count(),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    texts = [prompt.text or "" for prompt in load_backlog(prompts, lines * rounds)]
    parts = [texts[first : first + lines] for first in range(0, len(texts), lines)]
    chosen = model_folder(model), parts, max_tokens, threads
    rates = {
        "LLM.chat": chat.rates(*chosen),
        "LLM.chat, one process": chat.rates(*chosen, one_process=True),
        "LLM.chat, eager": chat.rates(*chosen, eager=True),
        "LLM.chat, eager, one process": chat.rates(*chosen, eager=True, one_process=True),
    }
    with TemporaryDirectory() as folder:
        named = enumerate(parts)
        files = [write_batch(Path(folder) / f"{number}.jsonl", model, part, max_tokens) for number, part in named]
        for engine in ("torch", "vllm"):
            rates[f"slackwater up --engine {engine}"] = asyncio.run(batch_rates(engine, model, files, threads))
    for system, own in rates.items():
        ratio = fmean(own) / fmean(rates["LLM.chat"])
        spread = {"output tokens/s": fmean(own), "least": min(own), "most": max(own)}
        yield {"system": system, **formatted(".1f", spread), **formatted(".2f", {"of LLM.chat": ratio})}
