"""vLLM's model on our attention: blocks filled from both ends, shared, checkpointed, restored; against vLLM's own."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.errors import ConfigError
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine, Sequence, StepBatch
from shared.scheduling.strategy import Strategy
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.shared.replica.bidirectional_rig import disturbed, greedy_requests, undisturbed
from tests.with_vllm import WITH_VLLM

pytestmark = WITH_VLLM

NUM_BLOCKS, NUM_HOST_SLOTS = 40, 300
GREEDY = SamplingParams(10, temperature=0.0, ignore_eos=True)


def load(shallow_model: Path, kv_sharing: str, block_size: int, num_host_slots: int = NUM_HOST_SLOTS) -> Engine:
    """In float32: a bit of rounding is not to decide between two tokens."""
    settings = ExecutorSettings(
        str(shallow_model),
        engine="vllm",
        dtype="float32",
        threads=1,
        kv_blocks=NUM_BLOCKS,
        block_size=block_size,
        host_kv_slots=num_host_slots,
        strategy=Strategy(kv_sharing=kv_sharing),
    )
    return load_engine(settings)


@pytest.fixture(scope="module")
def directed(shallow_model: Path) -> Iterator[Engine]:
    engine = load(shallow_model, "bidirectional", block_size=16)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def stock(shallow_model: Path, directed: Engine) -> Iterator[Engine]:
    """Made after the other: our attention is gone by then."""
    engine = load(shallow_model, "recompute", block_size=32)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def requests(shallow_model: Path) -> list[GenerateRequest]:
    return greedy_requests(shallow_model)


@pytest.fixture(scope="module")
def expected(stock: Engine, requests: list[GenerateRequest]) -> dict[str, list[int]]:
    return undisturbed(stock, requests)


def test_each_engine_says_what_it_is(directed: Engine, stock: Engine) -> None:
    assert directed.spec.device == f"{stock.spec.device}-own-attention", "their steps take other times"
    assert (directed.spec.num_host_slots, stock.spec.num_host_slots) == (NUM_HOST_SLOTS, 0)
    assert (directed.spec.block_size, directed.spec.num_blocks) == (16, NUM_BLOCKS)
    assert directed.spec.swap_ms_per_slot > 0.0


def test_outputs_are_those_of_vllm(
    directed: Engine, requests: list[GenerateRequest], expected: dict[str, list[int]]
) -> None:
    assert undisturbed(directed, requests) == expected


@pytest.mark.parametrize("seed", range(3))
def test_outputs_with_shared_blocks_are_those_of_vllm(
    directed: Engine, requests: list[GenerateRequest], expected: dict[str, list[int]], seed: int
) -> None:
    outputs, totals = disturbed(directed, requests, num_blocks=9, seed=seed)
    assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots, totals.cached_tokens) > 0
    assert outputs == expected


def test_two_requests_in_one_block_do_not_see_each_other(directed: Engine) -> None:
    """Steps by hand: an online and an offline request, from both ends of block 3, and each by itself after that."""

    def run(tables: dict[str, list[int]]) -> dict[str, list[int]]:
        tokens = {"online": list(range(50, 55)), "offline": list(range(90, 95))}
        computed = dict.fromkeys(tokens, 0)
        for step in range(4):
            batch = [
                Sequence(key, tokens[key][computed[key] :], computed[key], table, GREEDY, True, key == "offline")
                for key, table in tables.items()
            ]
            sampled = directed.execute(StepBatch(step, batch)).sampled
            for key in tables:
                computed[key] = len(tokens[key])
                tokens[key].append(sampled[key])
        return {key: tokens[key] for key in tables}

    together = run({"online": [3], "offline": [3]})
    assert together == run({"online": [5]}) | run({"offline": [6]})
    assert len(together["online"]) + len(together["offline"]) == 18, "16 slots are filled, the last tokens have none"


def test_scattered_blocks_and_shared_prefixes_make_no_difference(directed: Engine, stock: Engine) -> None:
    outputs = []
    for engine in (directed, stock):
        driver, rng = EngineDriver(engine, 5, max_tokens=96, drop=0.1), random.Random(1)
        preamble = [rng.randrange(3, 40_000) for _ in range(70)]
        prompts = [preamble[: rng.choice([0, 33, 70])] + [100 + n] * rng.randint(1, 20) for n in range(8)]
        outputs.append(driver.run([Request(str(n), prompt, GREEDY) for n, prompt in enumerate(prompts)]))
        assert driver.shared_blocks > 0 and driver.drops > 0
    assert outputs[0] == outputs[1]


def test_a_block_size_that_is_no_power_of_two_is_refused(shallow_model: Path, directed: Engine) -> None:
    with pytest.raises(ConfigError, match="Slackwater's kernels take powers of two"):
        load(shallow_model, "bidirectional", block_size=48)


def test_a_kind_of_attention_that_is_not_ours_is_refused(stock: Engine) -> None:
    """``stock``: vLLM is imported."""
    from services.executor.engines.vllm.attention import DirectedAttention

    assert DirectedAttention(9, 64, 0.125, 3, sliding_window=128).sliding_window == 128
    with pytest.raises(NotImplementedError, match="has no ALiBi, a soft cap of logits, sinks"):
        DirectedAttention(9, 64, 0.125, 3, alibi_slopes=[0.5] * 9, logits_soft_cap=30.0, sinks=object())


def test_a_core_whose_host_pool_cannot_be_made_is_shut_down(
    shallow_model: Path, directed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.core import EngineCore

    ended: list[EngineCore] = []
    shutdown = EngineCore.shutdown

    def noted(self: EngineCore) -> None:
        ended.append(self)
        shutdown(self)

    monkeypatch.setattr(EngineCore, "shutdown", noted)
    with pytest.raises(ConfigError, match="no memory for 1000000000000 host slots"):
        load(shallow_model, "bidirectional", block_size=16, num_host_slots=10**12)
    assert len(ended) == 1


def test_workers_without_memory_for_host_slots_say_so(directed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """``directed``: vLLM is imported."""
    from services.executor.engines.vllm import host_slots

    class Workers:
        def collective_rpc(self, call: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
            return [call(None, *args) for _ in range(2)]

    monkeypatch.setattr(host_slots, "directed_kv_caches", lambda worker: [torch.zeros(4, 16, 2, 64)])
    with pytest.raises(ConfigError, match="no memory for 1000000000000 host slots of 512 bytes: ask for fewer"):
        host_slots.host_slots_of(Workers(), 10**12, num_workers=2)  # type: ignore[arg-type]
