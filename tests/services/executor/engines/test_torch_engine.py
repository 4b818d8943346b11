"""The torch engine against transformers itself: once on the whole model, in detail on a shallow one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.torch.engine import TorchEngine
from shared.errors import ConfigError, EngineError, ModelError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TO_COME, Sequence, StepBatch, StepResult
from tests.services.executor.engines.engine_driver import (
    EngineDriver,
    check_only_asked_rows_are_sampled,
    check_rows_read_what_others_of_their_step_write,
)
from tests.services.executor.engines.engine_prompts import (
    LIMITS,
    MAX_TOKENS,
    PENALTIES,
    check_persons,
    encoded_prompts,
    person_requests,
    requests_of,
)

NUM_BLOCKS = 320


@pytest.fixture(scope="module")
def engine(shallow_model: Path) -> Iterator[TorchEngine]:
    loaded = TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=NUM_BLOCKS, num_threads=1)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def transformers_model(shallow_model: Path) -> Any:
    return load_in_transformers(shallow_model)


@pytest.fixture(scope="module")
def prompts(shallow_model: Path) -> list[list[int]]:
    return encoded_prompts(shallow_model)


def load_in_transformers(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_greedy_equals_transformers(engine: TorchEngine, transformers_model: Any, prompts: list[list[int]]) -> None:
    """16 prompts under random mixing, chunking, block sharing and recompute."""
    driver = EngineDriver(engine, seed=1, drop=0.1)
    outputs = driver.run(requests_of(prompts := prompts[::2]))
    assert driver.shared_blocks > 0 and driver.drops > 0
    check_greedy(engine, transformers_model, prompts, outputs)
    assert len({tuple(output) for output in outputs.values()}) == len(prompts), "each says something else"


def check_greedy(
    engine: TorchEngine,
    transformers_model: Any,
    prompts: list[list[int]],
    outputs: dict[str, list[int]],
    max_tokens: int = MAX_TOKENS,
) -> None:
    """A continuation is the greedy one exactly if each of its tokens is the argmax of what stands before it; one
    forward of transformers tells that for all."""
    for i, prompt in enumerate(prompts):
        output = outputs[f"r{i}"]
        ids = torch.tensor([prompt + output])
        with torch.inference_mode():
            argmax = transformers_model(ids, logits_to_keep=len(output) + 1).logits[0].argmax(-1).tolist()
        assert output == argmax[:-1], f"prompt {i}"
        assert len(output) == max_tokens or output[-1] in engine.spec.eos_token_ids


def test_the_whole_model_says_what_it_says_in_transformers(model_folder: Path, prompts: list[list[int]]) -> None:
    engine = TorchEngine.load(model_folder, "test", device="cpu", num_blocks=60, num_threads=2)
    driver = EngineDriver(engine, seed=1, max_tokens=48, drop=0.1)
    outputs = driver.run(requests_of(some := [prompts[0], prompts[12]], max_tokens=8))
    assert driver.drops > 0
    check_greedy(engine, load_in_transformers(model_folder), some, outputs, max_tokens=8)
    architecture = engine.spec.architecture
    assert architecture is not None and architecture.parameters == pytest.approx(134.5e6, rel=0.001)
    engine.close()


def test_interrupted_steps_leave_all_as_it_was(engine: TorchEngine, prompts: list[list[int]]) -> None:
    expected = EngineDriver(engine, seed=4).run(requests_of(prompts[:16]))
    driver = EngineDriver(engine, seed=5, drop=0.05, interrupt=0.9)
    assert driver.run(requests_of(prompts[:16])) == expected
    assert driver.interruptions > 0


def test_an_interrupted_step_stops_within_a_few_layers(engine: TorchEngine) -> None:
    """One that is asked to stop before it begins does next to nothing; one that may not be stopped ends as ever."""
    prompt = Sequence("r", list(range(1, 1001)), 0, list(range(63)), SamplingParams(1), True)
    for step, may_be_interrupted in enumerate((True, False)):
        engine.interrupt(step)
        result = engine.execute(StepBatch(step, [prompt], may_be_interrupted=may_be_interrupted))
        assert result.is_interrupted == may_be_interrupted
        assert list(result.sampled) == ([] if may_be_interrupted else ["r"])
    engine.interrupt(7)
    assert not engine.execute(StepBatch(8, [prompt], may_be_interrupted=True)).is_interrupted


def test_a_step_that_follows_takes_the_tokens_of_the_one_before(engine: TorchEngine, prompts: list[list[int]]) -> None:
    """And has no outcome where that has none, or is another."""
    greedy = SamplingParams(max_tokens=3, temperature=0.0)
    prompt, table = prompts[12], [0, 1]

    def decode(step: int, position: int, token_id: int = TO_COME, follows: int | None = None) -> StepResult:
        sequence = Sequence("r", [token_id], position, table, greedy, True)
        return engine.execute(StepBatch(step, [sequence], follows=follows))

    first = engine.execute(StepBatch(0, [Sequence("r", prompt, 0, table, greedy, True)])).sampled["r"]
    second = decode(1, len(prompt), follows=0).sampled["r"]
    third = decode(2, len(prompt) + 1, follows=1).sampled["r"]
    assert decode(3, len(prompt), first).sampled["r"] == second
    assert decode(4, len(prompt) + 1, second).sampled["r"] == third
    assert decode(6, len(prompt) + 2, follows=5).is_interrupted
    with pytest.raises(EngineError):
        decode(7, len(prompt), engine.spec.vocab_size)
    assert decode(8, len(prompt), follows=7).is_interrupted
    assert decode(9, len(prompt), first).sampled["r"] == second


@pytest.mark.parametrize("index", [0, 12, 28])
def test_alone_equals_generate(
    engine: TorchEngine, transformers_model: Any, prompts: list[list[int]], index: int
) -> None:
    prompt = torch.tensor([prompts[index]])
    generated = transformers_model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=MAX_TOKENS
    )
    outputs = EngineDriver(engine, seed=index, max_tokens=1024).run(requests_of([prompts[index]]))
    assert outputs["r0"] == generated[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("penalties", [{}, PENALTIES, LIMITS | {"ignore_eos": False}])
def test_sampling_does_not_depend_on_the_schedule(
    engine: TorchEngine, prompts: list[list[int]], penalties: dict[str, Any]
) -> None:
    """The same seeds under two schedules, one with preemptions: the same tokens, and not the greedy ones."""
    options = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_tokens": 12, "ignore_eos": True} | penalties
    short = prompts[:3] + prompts[13:20]
    plain = EngineDriver(engine, seed=5, max_tokens=512).run(requests_of(short, **options))
    driver = EngineDriver(engine, seed=6, max_tokens=60, drop=0.1)
    assert driver.run(requests_of(short, **options)) == plain
    assert driver.drops > 0
    other_seeds = EngineDriver(engine, seed=5, max_tokens=512).run(requests_of(short, **options | {"seed": 77}))
    assert other_seeds != plain


def test_hot_outputs_keep_to_their_schema(engine: TorchEngine, shallow_model: Path, prompts: list[list[int]]) -> None:
    """Under preemption, beside requests that may say what they like, and say what they say alone."""
    plain = requests_of(prompts[:3], max_tokens=8)
    driver = EngineDriver(engine, seed=3, max_tokens=256, drop=0.1)
    outputs = driver.run(person_requests(shallow_model, 3) + plain)
    assert driver.drops > 0
    check_persons(shallow_model, outputs, 3)
    alone = EngineDriver(engine, seed=4).run(requests_of(prompts[:3], max_tokens=8))
    assert {request_id: outputs[request_id] for request_id in alone} == alone


def test_two_directions_share_a_block(engine: TorchEngine, prompts: list[list[int]]) -> None:
    """One request fills a block from the left and another fills the same block from the right, until it is full."""
    left, right = prompts[12], prompts[13]  # a few tokens each
    steps = (engine.spec.block_size - len(left) - len(right)) // 2
    assert steps > 2

    def generate(tables: dict[str, int]) -> dict[str, list[int]]:
        greedy = SamplingParams(max_tokens=steps, temperature=0.0)
        tokens = {"left": list(left), "right": list(right)}
        for step in range(steps):
            computed = {name: len(own) - 1 if step else 0 for name, own in tokens.items()}
            sequences = [
                Sequence(name, own[computed[name] :], computed[name], [tables[name]], greedy, True, name == "right")
                for name, own in tokens.items()
            ]
            for name, token in engine.execute(StepBatch(step, sequences)).sampled.items():
                tokens[name].append(token)
        return tokens

    assert generate({"left": 7, "right": 7}) == generate({"left": 3, "right": 5})


@pytest.mark.parametrize("fills_right", [False, True])
def test_rows_read_what_others_of_their_step_write(engine: TorchEngine, fills_right: bool) -> None:
    check_rows_read_what_others_of_their_step_write(engine, fills_right)


def test_only_asked_rows_are_sampled(engine: TorchEngine) -> None:
    check_only_asked_rows_are_sampled(engine)


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (Sequence("r", [1] * 17, 0, [0], SamplingParams(1), True), "block table"),
        (Sequence("r", [], 3, [0], SamplingParams(1), True), "no token"),
        (Sequence("r", [10**6], 0, [0], SamplingParams(1), True), "vocabulary"),
        (Sequence("r", [1], 0, [NUM_BLOCKS], SamplingParams(1), True), "outside the pool"),
    ],
)
def test_bad_batches_are_engine_errors(engine: TorchEngine, sequence: Sequence, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        engine.execute(StepBatch(3, [sequence]))
    good = Sequence("r", [1, 2, 3], 0, [0], SamplingParams(1, temperature=0.0), True)
    assert "r" in engine.execute(StepBatch(4, [good])).sampled


def test_spec(engine: TorchEngine) -> None:
    assert engine.spec.device.startswith("cpu-") and engine.spec.device.endswith("-1t")
    assert engine.spec.dtype == "float32"
    assert engine.spec.eos_token_ids[0] == 2  # <|im_end|>
    assert engine.spec.max_model_len == NUM_BLOCKS * 16  # less than the model's own context
    assert engine.spec.num_blocks == NUM_BLOCKS
    architecture = engine.spec.architecture
    assert architecture is not None and architecture.bytes_per_value == 4


def test_settings_that_cannot_be_met(shallow_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="beyond the model's 8192"):
        TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=8, max_model_len=9000)
    with pytest.raises(ConfigError, match="write auto, float32"):
        TorchEngine.load(shallow_model, "test", device="cpu", dtype="float8")
    with pytest.raises(ConfigError, match="write auto, cpu"):
        TorchEngine.load(shallow_model, "test", device="tpu9")
    with pytest.raises(ModelError, match="not a prepared model"):
        TorchEngine.load(tmp_path, "test")
