"""How soon a cancelled batch computes nothing more: ``python -m benchmarks.gateway.batch_cancel``. A large batch runs
on an executor with the simulated engine at the speed of its GPU; from the client's request to cancel it to the first
step that holds none of its requests, and to the status ``cancelled``.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.gateway.large_batch import ENDED, batch_stack, submit, write_input
from benchmarks.harness.command import Results, benchmark
from benchmarks.harness.stack import wait_until
from benchmarks.harness.table import Row
from services.local.commands.server import ApiClient
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.steps import StepStarted

LINE_BYTES = 1000
MAX_TOKENS = 1000


async def cancel(client: ApiClient, bus: Bus, source: Path) -> Row:
    steps: asyncio.Queue[tuple[float, StepStarted]] = asyncio.Queue()

    async def on_step(step: StepStarted) -> None:
        steps.put_nowait((time.perf_counter(), step))

    subscription = await bus.subscribe(subjects.STEPS, StepStarted, on_step)
    batch_id = await asyncio.to_thread(submit, client, source)
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
    await asyncio.to_thread(wait_until, lambda: client.get(f"/v1/batches/{batch_id}")["status"] in ENDED)
    ended_s = time.perf_counter()
    await subscription.stop()
    return {
        "requests on the executor": str(num_held),
        "ms until no step holds one": f"{(at_s - start_s) * 1e3:.0f}",
        "ms until cancelled": f"{(ended_s - start_s) * 1e3:.0f}",
    }


async def measure(client: ApiClient, nats_url: str, source: Path, rounds: int) -> list[Row]:
    """One a round."""
    bus = await Bus.connect(nats_url, "benchmark")
    try:
        return [await cancel(client, bus, source) for _ in range(rounds)]
    finally:
        await bus.close()


@benchmark
def main(lines: int = 10_000, rounds: int = 3) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.jsonl"
        write_input(source, lines, lines * LINE_BYTES, MAX_TOKENS)
        with batch_stack([], "1.0") as running, ApiClient(running.url) as client:
            yield from asyncio.run(measure(client, running.nats_url, source, rounds))
