"""The vLLM engine under hundreds of random steps, against vLLM under its own scheduler and against transformers: small
models with random weights."""

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.vllm.environment import changes_undone, import_vllm
from shared.errors import ModelError
from shared.protocol.sampling import SamplingParams
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import save_model
from tests.with_vllm import WITH_VLLM

pytestmark = WITH_VLLM

MAX_TOKENS = 40
PLANS = 8
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 12, "head_dim": 32},
    "gemma2": {"head_dim": 32, "sliding_window": 12},
}


def load(path: Path, num_blocks: int = 60) -> Any:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    return VllmEngine.load(path, "test", VllmOptions(1, num_blocks=num_blocks, max_num_seqs=16))


def prompts_of(num_prompts: int) -> list[list[int]]:
    """In two families that begin alike for more than a block."""
    rng = random.Random(0)
    starts = [[rng.randrange(2, 300) for _ in range(70)] for _ in range(2)]
    return [
        starts[n % 2][: rng.randint(1, 70)] + [rng.randrange(2, 300) for _ in range(rng.randint(1, 60))]
        for n in range(num_prompts)
    ]


def greedy_of_vllm(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """From vLLM by itself: its scheduler, its KV cache manager, its sampler."""
    import_vllm(1)
    from vllm import LLM
    from vllm import SamplingParams as VllmSamplingParams

    with changes_undone(1):
        llm = LLM(
            str(path),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            block_size=32,
            kv_cache_memory_bytes=1 << 24,
            use_tqdm_on_load=False,
        )
    sampling = VllmSamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_greedy_equals_vllm_whatever_the_plan(tmp_path: Path) -> None:
    """Plans of mixed batches and random chunks, with holds, preemptions, aborts, ids that come back, shared blocks."""
    save_model(tmp_path, "llama", head_dim=32, eos_token_id=None)
    prompts = prompts_of(14)
    expected = greedy_of_vllm(tmp_path, prompts)
    engine = load(tmp_path)
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    counts = dict.fromkeys(("holds", "drops", "restarts", "shared_blocks"), 0)
    steps = 0
    for seed in range(PLANS):
        driver = EngineDriver(engine, seed, max_tokens=96, drop=0.1, restart=0.05)
        outputs = driver.run([Request(f"r{n}", prompt, sampling) for n, prompt in enumerate(prompts)])
        assert list(outputs.values()) == expected, f"plan {seed}"
        steps += driver.steps
        counts = {name: count + getattr(driver, name) for name, count in counts.items()}
    runner = weakref.ref(engine._core.model_executor.driver_worker.worker.model_runner)
    engine.close()
    gc.collect()
    assert runner() is None
    assert steps > 500 and min(counts.values()) > 20, (steps, counts)
    assert len({tuple(output) for output in expected}) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family: str, tmp_path: Path) -> None:
    """Also where layers see a window only, and where logits are capped."""
    model = save_model(tmp_path, family, **FAMILIES[family])
    engine = load(tmp_path)
    prompts = prompts_of(5)
    sampling = SamplingParams(max_tokens=10, temperature=0.0)
    requests = [Request(f"r{n}", prompt, sampling) for n, prompt in enumerate(prompts)]
    outputs = EngineDriver(engine, seed=3, max_tokens=60, drop=0.1).run(requests)
    engine.close()
    for n, prompt in enumerate(prompts):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + outputs[f"r{n}"]])).logits[0, len(prompt) - 1 : -1]
        assert outputs[f"r{n}"] == logits.argmax(-1).tolist(), f"prompt {n}"


def test_models_without_kv_of_every_token_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "mamba")
    with pytest.raises(ModelError, match="cannot run the model"):
        load(tmp_path)
