"""The vLLM engine beside the torch engine, once on the whole model and in detail on a shallow one; under many plans:
test_vllm_plans."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.vllm.environment import changes_undone, import_vllm
from shared.errors import ConfigError, EngineError, ModelError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.scheduling.kv.slot_transfers import SlotOperations
from tests.services.executor.engines.engine_driver import (
    EngineDriver,
    Request,
    check_only_asked_rows_are_sampled,
    check_rows_read_what_others_of_their_step_write,
)
from tests.services.executor.engines.engine_prompts import (
    LIMITS,
    PENALTIES,
    check_persons,
    encoded_prompts,
    person_requests,
    requests_of,
)
from tests.with_vllm import NEEDS_VLLM

pytestmark = NEEDS_VLLM

LD_PRELOAD = os.environ.get("LD_PRELOAD")
NUM_BLOCKS = 64
MAX_TOKENS = 12
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@pytest.fixture(scope="module")
def prompts(shallow_model: Path) -> list[list[int]]:
    """Two that begin alike, and short ones."""
    encoded = encoded_prompts(shallow_model)
    return encoded[8:10] + encoded[18:24]


def load(folder: Path) -> Any:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    return VllmEngine.load(
        folder, "test", VllmOptions(1, num_blocks=NUM_BLOCKS, max_num_seqs=16, max_num_batched_tokens=512)
    )


def load_torch(folder: Path) -> Any:
    from services.executor.engines.torch.engine import TorchEngine

    return TorchEngine.load(folder, "test", device="cpu", num_blocks=120, num_threads=1)


@pytest.fixture(scope="module")
def engine(shallow_model: Path) -> Iterator[Any]:
    loaded = load(shallow_model)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def torch_engine(shallow_model: Path) -> Iterator[Any]:
    loaded = load_torch(shallow_model)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def greedy(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The outputs under a plan with everything that a plan may have."""
    driver = EngineDriver(engine, seed=1, max_tokens=64, drop=0.1, restart=0.05)
    outputs = driver.run(requests_of(prompts, max_tokens=MAX_TOKENS))
    assert min(driver.holds, driver.drops, driver.restarts) > 0
    return list(outputs.values())


@pytest.mark.slow
def test_the_whole_model_says_what_the_torch_engine_says(model_folder: Path, prompts: list[list[int]]) -> None:
    """Before the others: vLLM's parallel groups end with any engine that is closed."""
    outputs = []
    for whole in (load(model_folder), load_torch(model_folder)):
        driver = EngineDriver(whole, seed=1, max_tokens=48, drop=0.1)
        outputs.append(driver.run(requests_of([prompts[0], *prompts[4:6]], max_tokens=8)))
        assert driver.drops > 0
        architecture = whole.spec.architecture
        assert architecture is not None and architecture.parameters == pytest.approx(134.5e6, rel=0.001)
        whole.close()
    assert outputs[0] == outputs[1]


def test_greedy_equals_the_torch_engine(engine: Any, greedy: list[list[int]], torch_engine: Any, prompts: Any) -> None:
    outputs = EngineDriver(torch_engine, seed=2, max_tokens=512).run(requests_of(prompts, max_tokens=MAX_TOKENS))
    assert list(outputs.values()) == greedy
    assert len({tuple(output) for output in greedy}) == len(prompts), "each says something else"
    runner = runner_of(engine)
    assert len(runner.requests) <= len(prompts) and set(runner.requests) == set(runner.input_batch.req_ids)


def test_sampling_does_not_depend_on_the_schedule(engine: Any, prompts: list[list[int]]) -> None:
    """The same seeds under two schedules, one with preemptions: the same tokens, and not the greedy ones."""
    options = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_tokens": 10, "ignore_eos": True}
    some = prompts[2:6]
    plain = EngineDriver(engine, seed=5, max_tokens=512).run(requests_of(some, **options))
    driver = EngineDriver(engine, seed=6, max_tokens=40, drop=0.3, restart=0.1)
    assert driver.run(requests_of(some, **options)) == plain
    assert driver.drops > 0
    other_seeds = EngineDriver(engine, seed=5, max_tokens=512).run(requests_of(some, **options | {"seed": 77}))
    assert other_seeds != plain


def test_seeded_tokens_are_those_of_the_torch_engine(engine: Any, torch_engine: Any, prompts: list[list[int]]) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 8, "ignore_eos": True}
    expected = EngineDriver(torch_engine, seed=1).run(requests_of(prompts[4:8], **options))
    assert EngineDriver(engine, seed=2).run(requests_of(prompts[4:8], **options)) == expected


@pytest.mark.parametrize("penalties", [PENALTIES, LIMITS | {"ignore_eos": False}])
def test_penalties_are_those_of_the_torch_engine(
    engine: Any, torch_engine: Any, prompts: list[list[int]], penalties: dict[str, Any]
) -> None:
    """Under a plan in which requests lose their KV, and the runner its knowledge of their tokens, beside plain ones."""

    def requests() -> list[Request]:
        plain = requests_of(prompts, max_tokens=12, ignore_eos=True)
        options = {"temperature": 0.8, "ignore_eos": True} | penalties
        return requests_of(prompts[:4], max_tokens=12, **options) + plain[4:]

    expected = EngineDriver(torch_engine, seed=1).run(requests())
    driver = EngineDriver(engine, seed=2, max_tokens=40, drop=0.2)
    assert driver.run(requests()) == expected
    assert driver.drops > 0 and driver.holds > 0


def test_interrupted_steps_leave_all_as_it_was(engine: Any, prompts: list[list[int]]) -> None:
    expected = EngineDriver(engine, seed=4).run(requests_of(prompts))
    driver = EngineDriver(engine, seed=5, drop=0.05, interrupt=0.5)
    assert driver.run(requests_of(prompts)) == expected
    assert driver.interruptions > 0


def test_hot_outputs_keep_to_their_schema(
    engine: Any, torch_engine: Any, shallow_model: Path, prompts: list[list[int]]
) -> None:
    """As the torch engine's do; under preemption, beside requests without one."""
    driver = EngineDriver(engine, seed=3, max_tokens=256, drop=0.1)
    outputs = driver.run(person_requests(shallow_model, 2) + requests_of(prompts[4:6], max_tokens=8))
    assert driver.drops > 0
    check_persons(shallow_model, outputs, 2)
    expected = EngineDriver(torch_engine, seed=4).run(person_requests(shallow_model, 2))
    assert {request_id: outputs[request_id] for request_id in expected} == expected


def test_logprobs_are_those_of_the_torch_engine(engine: Any, torch_engine: Any, prompts: list[list[int]]) -> None:
    """Of two rows that ask for different numbers, beside one that does not ask."""
    found = []
    for each in (engine, torch_engine):
        samplings = [SamplingParams(1, 0.0, logprobs=num_top) for num_top in (3, None, 0)]
        sequences = [
            Sequence(f"r{n}", prompts[4 + n], 0, [4 * n, 4 * n + 1], sampling, True)
            for n, sampling in enumerate(samplings)
        ]
        result = each.execute(StepBatch(0, sequences))
        assert list(result.sampled) == ["r0", "r1", "r2"] and list(result.logprobs) == ["r0", "r2"]
        first, last = result.logprobs["r0"], result.logprobs["r2"]
        assert first.top_token_ids[0] == result.sampled["r0"] and last.top_token_ids == []
        found.append((first.top_token_ids, [first.logprob, *first.top_logprobs, last.logprob]))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-3)


def test_a_cut_token_never_comes_back(engine: Any, prompts: list[list[int]]) -> None:
    """The runner keeps what it sampled; where the executor goes on with another token, that one counts."""
    prompt = prompts[4]
    (first,) = engine.execute(StepBatch(0, [Sequence("cut", prompt, 0, [3], GREEDY, True)])).sampled.values()
    other = next(token for token in prompts[5] if token != first)
    decode = Sequence("cut", [other], len(prompt), [3], GREEDY, True)
    anew = Sequence("anew", [*prompt, other], 0, [4], GREEDY, True)
    result = engine.execute(StepBatch(1, [decode, anew]))
    assert result.sampled["cut"] == result.sampled["anew"]


def test_rows_read_what_others_of_their_step_write(engine: Any) -> None:
    check_rows_read_what_others_of_their_step_write(engine)


def test_only_asked_rows_are_sampled(engine: Any) -> None:
    check_only_asked_rows_are_sampled(engine)


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (Sequence("r", [1] * 33, 0, [0], GREEDY, True), "block table"),
        (Sequence("r", [], 3, [0], GREEDY, True), "no token"),
        (Sequence("r", [10**6], 0, [0], GREEDY, True), "vocabulary"),
        (Sequence("r", [1], 0, [NUM_BLOCKS], GREEDY, True), "outside the pool"),
        (Sequence("r", [1], NUM_BLOCKS * 32 - 1, list(range(NUM_BLOCKS)), GREEDY, True), "no token can follow"),
        (Sequence("r", [1], 0, [0], GREEDY, True, fills_right=True), "from the right"),
    ],
)
def test_bad_batches_are_engine_errors(engine: Any, sequence: Sequence, reason: str) -> None:
    good = Sequence("good", [1, 2, 3], 0, [1], GREEDY, True)
    with pytest.raises(EngineError, match=reason):
        engine.execute(StepBatch(3, [good, sequence]))
    assert "good" in engine.execute(StepBatch(4, [good])).sampled


@pytest.mark.parametrize(("count", "length"), [(17, 1), (2, 300)])
def test_a_step_beyond_the_runner_is_an_engine_error(engine: Any, count: int, length: int) -> None:
    sequences = [Sequence(f"r{n}", [5] * length, 0, list(range(10)), GREEDY, True) for n in range(count)]
    with pytest.raises(EngineError, match="more than a step holds"):
        engine.execute(StepBatch(0, sequences))
    assert list(engine.execute(StepBatch(1, sequences[:1])).sampled) == ["r0"]


def test_slots_are_not_copied(engine: Any) -> None:
    good = Sequence("good", [1, 2, 3], 0, [1], GREEDY, True)
    with pytest.raises(EngineError, match="without host slots"):
        engine.execute(StepBatch(0, [good], [SlotOperations(moves=[(0, 1)])]))


def test_a_failed_step_poisons_nothing(engine: Any, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    """The forward pass fails in the middle of decoding; from the blocks that were whole before, the tokens go on."""
    whole = [
        Sequence(f"r{index}", prompt, 0, [2 * index, 2 * index + 1], GREEDY, True)
        for index, prompt in enumerate(prompts[4:8])
    ]
    first = engine.execute(StepBatch(6, whole)).sampled
    following = [
        Sequence(s.request_id, [first[s.request_id]], len(s.token_ids), s.block_table, GREEDY, True) for s in whole
    ]

    def fail(module: torch.nn.Module, args: Any) -> None:
        raise RuntimeError("out of memory")

    handle = runner_of(engine).model.register_forward_pre_hook(fail)
    with pytest.raises(EngineError, match="out of memory"):
        engine.execute(StepBatch(7, following))
    handle.remove()
    second = engine.execute(StepBatch(8, following)).sampled
    assert [[first[key], second[key]] for key in first] == [tokens[:2] for tokens in greedy[4:8]]
    outputs = EngineDriver(engine, seed=2).run(requests_of(prompts[4:8], max_tokens=MAX_TOKENS))
    assert list(outputs.values()) == greedy[4:8]


def test_spec(engine: Any) -> None:
    assert engine.spec.engine == "vllm"
    assert engine.spec.device.startswith("cpu-") and engine.spec.device.endswith("-1t")
    assert engine.spec.dtype == "float32"
    assert engine.spec.eos_token_ids[0] == 2  # <|im_end|>
    assert (engine.spec.block_size, engine.spec.num_blocks) == (32, NUM_BLOCKS)
    assert engine.spec.max_model_len == NUM_BLOCKS * 32  # less than the model's own context
    architecture = engine.spec.architecture
    assert architecture is not None and (architecture.bytes_per_value, engine.spec.tensor_parallel) == (4, 1)


def test_what_vllm_changes_is_put_back(engine: Any) -> None:
    assert os.environ.get("LD_PRELOAD") == LD_PRELOAD
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
    with changes_undone():
        state = random.getstate()
        random.seed(0)
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_size": 16}, "take multiples of 32"),
        ({"max_model_len": 9000}, "beyond the model's 8192"),
        ({"max_model_len": 512, "num_blocks": 4}, "does not fit 4 KV blocks"),
        ({"dtype": "float8"}, "write auto, float32"),
        ({"device": "cuda"}, "the installed vLLM runs on cpu"),
    ],
)
def test_settings_that_cannot_be_met(shallow_model: Path, options: dict[str, Any], reason: str) -> None:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    with pytest.raises(ConfigError, match=reason):
        VllmEngine.load(shallow_model, "test", VllmOptions(1, **options))


def test_a_model_runner_without_what_is_relied_on_is_refused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.executor.engines.vllm.workers import check_runner

    runner = runner_of(engine)
    check_runner(runner)
    monkeypatch.delattr(runner.input_batch, "block_table")
    with pytest.raises(ConfigError, match=r"no input_batch\.block_table"):
        check_runner(runner)
    with pytest.raises(ConfigError, match="Linear is not the model runner"):
        check_runner(torch.nn.Linear(1, 1))


def test_a_block_size_that_vllm_changes_is_refused(shallow_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration ends with another one than it was given, as those of some models do."""
    import_vllm(1)
    from services.executor.engines.vllm import core as vllm_core
    from services.executor.engines.vllm.engine import VllmEngine

    make_args = vllm_core._engine_args
    monkeypatch.setattr(vllm_core, "_engine_args", lambda *given: replace(make_args(*given), block_size=64))
    with pytest.raises(ModelError, match="blocks of 64 tokens, where 32 was asked for"):
        VllmEngine.load(shallow_model, "test", vllm_core.VllmOptions(1, num_blocks=NUM_BLOCKS))


def runner_of(engine: Any) -> Any:
    """vLLM's model runner behind an engine."""
    return engine._core.model_executor.driver_worker.worker.model_runner
