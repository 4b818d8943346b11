"""A prefix cache of more blocks than one message can tell of."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.bus import Bus
from shared.protocol import subjects
from shared.scheduling.kv.block_hash import HASH_BYTES
from shared.scheduling.kv.prefix_cache import CacheChanges, PrefixCacheMirror
from tests.services.gateway.gateway_rig import GatewayRig

MAX_PAYLOAD = 1024**2  # nats-server's own
PROMPT_TOKENS, NUM_PROMPTS = 8100, 135  # 68,000 blocks


async def test_as_many_blocks_are_told_as_the_bus_takes(tmp_path: Path) -> None:
    with GatewayRig(tmp_path) as rig, ThreadPoolExecutor(4) as clients:
        sizes = "--kv-blocks", "90000", "--max-num-batched-tokens", "16384", "--sim-time-scale", "0.0001"
        rig.start_executor("executor-0", "--preset", "sarathi++", *sizes)
        rig.start_gateway()
        rig.wait_ready()

        def fill(number: int) -> int:
            prompt = [(number * 7919 + place * 31) % 40_000 + 5 for place in range(PROMPT_TOKENS)]
            return rig.complete(prompt=prompt, max_tokens=1).status_code

        assert {*clients.map(fill, range(NUM_PROMPTS))} == {200}
        bus, mirror = await Bus.connect(rig.nats_url, "test"), PrefixCacheMirror()
        mirror.apply(await bus.request(subjects.cache("executor-0"), {}, CacheChanges))
        await bus.close()
    assert 0.99 * MAX_PAYLOAD < len(mirror) * HASH_BYTES < MAX_PAYLOAD
