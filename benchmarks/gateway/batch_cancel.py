"""How soon a cancelled batch computes nothing more: ``python -m benchmarks.gateway.batch_cancel``. A large batch runs
on an executor with the simulated engine at the speed of its GPU; from the client's request to cancel it to the first
step that holds none of its requests, and to the status ``cancelled``.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.gateway.batch_scale import ENDED, batch_stack, step_messages, submit, write_input
from benchmarks.harness.command import Results, Row, benchmark
from benchmarks.harness.stack import wait_until
from services.local.commands.server import ApiClient

LINE_BYTES = 1000
MAX_TOKENS = 1000


async def cancel(client: ApiClient, nats_url: str, source: Path) -> Row:
    async with step_messages(nats_url) as messages:
        batch_id = await asyncio.to_thread(submit, client, source)
        num_held = 0
        for _ in range(50):  # in full swing
            num_held = len((await messages.get())[1].states)
        start_s = time.perf_counter()
        cancelling = asyncio.create_task(asyncio.to_thread(client.post, f"/v1/batches/{batch_id}/cancel"))
        while True:
            at_s, step = await messages.get()
            if at_s > start_s and not any(state.request_id.startswith(f"{batch_id}.") for state in step.states):
                break
        await cancelling
    await asyncio.to_thread(wait_until, lambda: client.get(f"/v1/batches/{batch_id}")["status"] in ENDED)
    ended_s = time.perf_counter()
    return {
        "requests on the executor": str(num_held),
        "ms until no step holds one": f"{(at_s - start_s) * 1e3:.0f}",
        "ms until cancelled": f"{(ended_s - start_s) * 1e3:.0f}",
    }


@benchmark
def main(lines: int = 10_000, rounds: int = 3) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.jsonl"
        write_input(source, lines, lines * LINE_BYTES, MAX_TOKENS)
        with batch_stack("1.0") as running, ApiClient(running.url) as client:
            for _ in range(rounds):
                yield asyncio.run(cancel(client, running.nats_url, source))
