"""How soon a cancelled batch computes nothing more: ``python -m benchmarks.batch_cancel``. A large batch runs on an
executor with the simulated engine at the speed of its GPU; from the client's request to cancel it to the first step
that holds none of its requests, and to the status ``cancelled``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.batch_scale import ENDED, ENDPOINT, READY_S, is_ready, stack, wait, write_input
from benchmarks.figures import print_table
from services.local.commands.server import ApiClient
from services.local.stack.port import free_port
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.messages import StepStarted

POLL_S = 0.05
LINE_BYTES = 1000
MAX_TOKENS = 1000


async def cancel(client: ApiClient, bus: Bus, source: Path) -> tuple[int, float, float]:
    """Requests on the executor when it was cancelled; ms until none was, ms until the status said so."""
    steps: asyncio.Queue[tuple[float, StepStarted]] = asyncio.Queue()

    async def on_step(step: StepStarted) -> None:
        steps.put_nowait((time.perf_counter(), step))

    subscription = await bus.subscribe(subjects.STEPS, StepStarted, on_step)
    file_id = (await asyncio.to_thread(client.upload, source, "batch"))["id"]
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    batch_id = (await asyncio.to_thread(client.post, "/v1/batches", body))["id"]
    num_held = 0
    for _ in range(50):  # in full swing
        num_held = len((await steps.get())[1].states)
    start_s = time.perf_counter()
    cancelling = asyncio.create_task(asyncio.to_thread(client.post, f"/v1/batches/{batch_id}/cancel"))
    while True:
        at_s, step = await steps.get()
        if at_s > start_s and not any(state.request_id.startswith(f"{batch_id}.") for state in step.states):
            break
    await cancelling
    await asyncio.to_thread(wait, lambda: client.get(f"/v1/batches/{batch_id}")["status"] in ENDED, READY_S, POLL_S)
    ended_s = time.perf_counter()
    await subscription.stop()
    return num_held, (at_s - start_s) * 1e3, (ended_s - start_s) * 1e3


async def measure(client: ApiClient, nats_url: str, source: Path, rounds: int) -> list[list[str]]:
    """One row a round."""
    await asyncio.to_thread(wait, lambda: is_ready(client), READY_S)
    bus = await Bus.connect(nats_url, "benchmark")
    try:
        cancelled = [await cancel(client, bus, source) for _ in range(rounds)]
    finally:
        await bus.close()
    return [[str(held), f"{stopped_ms:.0f}", f"{ended_ms:.0f}"] for held, stopped_ms, ended_ms in cancelled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    nats_port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.jsonl"
        write_input(source, arguments.lines, arguments.lines * LINE_BYTES, MAX_TOKENS)
        with stack(Path(folder) / "nats", [], "1.0", nats_port) as (url, _), ApiClient(url) as client:
            nats_url = f"nats://127.0.0.1:{nats_port}"
            rows = asyncio.run(measure(client, nats_url, source, arguments.rounds))
    print_table(["requests on the executor", "ms until no step holds one", "ms until cancelled"], rows)


if __name__ == "__main__":
    main()
