"""OpenAI's limits for one batch, 50,000 lines and 200 MB, through the whole stack in bounded memory."""

import json
from pathlib import Path

import pytest

from benchmarks.gateway.batch_scale import ENDED, ENDPOINT, write_input
from services.local.commands.server import ApiClient
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

GATEWAY_GROWTH_BYTES = 32 * 1024**2
QUEUE_GROWTH_BYTES = 48 * 1024**2  # what reading, tokenizing and writing take, beside the pool
WAIT_S = 1500.0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("num_lines", "num_bytes", "pool_mb"),
    [
        pytest.param(8_000, 64_000_000, 8, marks=pytest.mark.slow, id="large"),
        pytest.param(50_000, 200_000_000, 32, marks=pytest.mark.campaign, id="largest"),
    ],
)
def test_a_batch_runs_in_bounded_memory(tmp_path: Path, num_lines: int, num_bytes: int, pool_mb: int) -> None:
    source, output = tmp_path / "input.jsonl", tmp_path / "output.jsonl"
    write_input(source, num_lines, num_bytes, max_tokens=4)
    with GatewayRig(tmp_path) as rig, ApiClient(rig.url) as client:
        rig.start_offline_queue("--preset", "sarathi++", "--pool-mb", str(pool_mb))
        rig.start_executor(
            "executor-0",
            *("--preset", "sarathi++", "--kv-blocks", "32768", "--sim-time-scale", "0.0001"),
            *("--max-num-batched-tokens", "16384"),
        )
        rig.start_gateway()
        rig.wait_ready()
        services = ("gateway", "offline-queue")
        before = {name: rig.resident_bytes(name) for name in services}
        most = dict(before)
        body = {"input_file_id": client.upload(source, "batch")["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        batch_id = client.post("/v1/batches", body)["id"]

        def has_ended() -> bool:
            for name in services:
                most[name] = max(most[name], rig.resident_bytes(name))
            return client.get(f"/v1/batches/{batch_id}")["status"] in ENDED

        wait_until(has_ended, "the batch has not ended", WAIT_S)
        batch = client.get(f"/v1/batches/{batch_id}")
        assert batch["request_counts"] == {"total": num_lines, "completed": num_lines, "failed": 0}
        client.download(batch["output_file_id"], output)
        with output.open("rb") as lines:
            ids = {json.loads(line)["custom_id"] for line in lines}
        assert ids == {f"request-{number}" for number in range(num_lines)}
        most["gateway"] = max(most["gateway"], rig.resident_bytes("gateway"))
        assert most["gateway"] - before["gateway"] < GATEWAY_GROWTH_BYTES
        assert most["offline-queue"] - before["offline-queue"] < pool_mb * 1024**2 + QUEUE_GROWTH_BYTES
