"""Engines' KV, read by address: a request goes on over blocks whose bytes were copied from others."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.vllm.environment import import_vllm
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import KVRegions, Sequence, StepBatch
from tests.services.executor.engines.engine_prompts import encoded_prompts
from tests.with_vllm import WITH_VLLM

NUM_BLOCKS = 24
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture(
    scope="module",
    params=["torch", pytest.param("vllm", marks=WITH_VLLM), pytest.param("slackwater", marks=WITH_VLLM)],
)
def engine(shallow_model: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Torch's, and vLLM's with either attention."""
    loaded: Any
    if request.param == "torch":
        loaded = TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=NUM_BLOCKS, num_threads=1)
    else:
        import_vllm(1)
        from services.executor.engines.vllm.core import VllmOptions
        from services.executor.engines.vllm.engine import VllmEngine

        options = VllmOptions(1, num_blocks=NUM_BLOCKS, max_num_seqs=4, attention=request.param)
        loaded = VllmEngine.load(shallow_model, "test", options)
    yield loaded
    loaded.close()


def test_a_request_goes_on_over_copied_blocks(engine: Any, shallow_model: Path) -> None:
    (prompt,) = [each for each in encoded_prompts(shallow_model) if len(each) > engine.spec.block_size][:1]
    num_blocks = -(-(len(prompt) + GREEDY.max_tokens) // engine.spec.block_size)
    here, there = list(range(num_blocks)), list(range(NUM_BLOCKS - 1, NUM_BLOCKS - 1 - num_blocks, -1))
    expected = decode(engine, prompt, here, 0)
    found = engine.kv_regions()
    assert isinstance(found, KVRegions)
    before = 3  # tokens that are known when it moves
    copy_blocks(found, list(zip(here, there, strict=True)))
    moved = decode(engine, prompt + expected[:before], there, len(prompt) + before - 1)
    assert moved[: len(expected) - before] == expected[before:]
    other = decode(engine, prompt + expected[:before], [NUM_BLOCKS // 2 + block for block in here], len(prompt) + 2)
    assert other[: len(expected) - before] != expected[before:], "the KV makes no difference"


def decode(engine: Any, token_ids: list[int], blocks: list[int], num_computed: int) -> list[int]:
    """Greedy, to the end of as many tokens as a request has from the first on."""
    tokens, step, output = list(token_ids), 0, list[int]()
    while len(blocks) * engine.spec.block_size > len(tokens) and len(output) < GREEDY.max_tokens:
        sequence = Sequence(f"r{blocks[0]}", tokens[num_computed:], num_computed, blocks, GREEDY, True)
        sampled = engine.execute(StepBatch(step, [sequence])).sampled[sequence.request_id]
        num_computed = len(tokens)
        tokens.append(sampled)
        output.append(sampled)
        step += 1
    return output


def copy_blocks(found: KVRegions, pairs: list[tuple[int, int]]) -> None:
    for region in found.regions:
        for source, target in pairs:
            start, end = (region.address + block * region.stride for block in (source, target))
            ctypes.memmove(end, start, region.block_bytes)
