"""LoRA adapters on the vLLM engine: the tokens are those of the model with each adapter in its weights."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.environment import import_vllm
from shared.errors import EngineError
from shared.protocol.sampling import EmbeddingShape, SamplingParams
from shared.replica.engine import Sequence, StepBatch
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.engine_prompts import encoded_prompts
from tests.services.executor.engines.test_torch_models import save_model
from tests.services.executor.engines.test_vllm_plans import prompts_of
from tests.services.executor.lora_adapters import ALL, ALPHA, ATTENTION, RANK, make_adapter, merge
from tests.with_vllm import WITH_VLLM

pytestmark = WITH_VLLM

MAX_TOKENS = 8
NAMES = ("", "whole", "attention")  # "": the model as it is


@pytest.fixture(scope="module")
def adapters(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "whole": make_adapter(shallow_model, folder / "whole", seed=1),
        "attention": make_adapter(shallow_model, folder / "attention", seed=2, modules=ATTENTION, rank=4, strength=0.3),
    }


@pytest.fixture(scope="module")
def prompts(shallow_model: Path) -> list[list[int]]:
    """Two that begin alike, and short ones."""
    encoded = encoded_prompts(shallow_model)
    return encoded[8:10] + encoded[19:21]


@pytest.fixture(scope="module")
def expected(
    shallow_model: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """By request id, of the torch engine: with each adapter, of a model that has it in its weights."""
    from services.executor.engines.torch.engine import TorchEngine

    outputs = {}
    for name in NAMES:
        folder = shallow_model
        if name:
            folder = merge(shallow_model, adapters[name], tmp_path_factory.mktemp("merged") / name)
        engine = TorchEngine.load(folder, name, device="cpu", num_blocks=120, num_threads=1)
        found = EngineDriver(engine, seed=2, max_tokens=512).run(requests_of(name, prompts, adapter=""))
        engine.close()
        outputs |= found
    firsts = [tuple(tuple(outputs[f"{name}-{i}"]) for i in range(len(prompts))) for name in NAMES]
    assert len(set(firsts)) == len(NAMES), "each says something else"
    return outputs


@pytest.fixture(scope="module", params=["vllm", "slackwater"])
def engine(request: pytest.FixtureRequest, shallow_model: Path, adapters: dict[str, Path]) -> Iterator[Any]:
    """By its attention."""
    loaded = load(shallow_model, adapters, attention=request.param)
    yield loaded
    loaded.close()


def load(shallow_model: Path, adapters: dict[str, Path], num_threads: int = 1, **options: Any) -> Any:
    import_vllm(num_threads)
    from services.executor.adapters import require_adapters
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    found = require_adapters(",".join(f"{name}={folder}" for name, folder in adapters.items()), shallow_model)
    sizes = {"num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    return VllmEngine.load(shallow_model, "test", VllmOptions(num_threads, adapters=tuple(found), **sizes, **options))


def requests_of(name: str, prompts: list[list[int]], **sampling: Any) -> list[Request]:
    asked = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True, "adapter": name} | sampling
    return [Request(f"{name}-{i}", prompt, SamplingParams(**asked)) for i, prompt in enumerate(prompts)]


def test_each_runs_as_the_model_with_it_in_its_weights(
    engine: Any, prompts: list[list[int]], expected: dict[str, list[int]]
) -> None:
    """All in the same steps, under a plan in which requests are held, lose their KV and begin again."""
    requests = [request for name in NAMES for request in requests_of(name, prompts)]
    driver = EngineDriver(engine, seed=1, max_tokens=96, drop=0.1, restart=0.05)
    assert driver.run(requests) == expected
    assert min(driver.holds, driver.drops, driver.restarts) > 0


def test_its_registration_says_what_is_loaded(engine: Any) -> None:
    assert engine.spec.adapters == NAMES[1:]
    assert "-lora2x8" in engine.spec.device, "its steps take another time"


def test_prompts_are_scored_and_embedded_with_the_adapter(engine: Any, prompts: list[list[int]]) -> None:
    prompt, seen = prompts[2], list[tuple[bytes, bytes]]()
    for number, name in enumerate(("", "whole", "")):
        scored = SamplingParams(0, 0.0, prompt_logprobs=1, adapter=name)
        embedded = SamplingParams(0, 0.0, embedding=EmbeddingShape(), adapter=name)
        batch = [
            Sequence("scored", prompt, 0, [0, 1], scored, False, scored_ids=prompt[1:]),
            Sequence("embedded", prompt, 0, [2, 3], embedded, False, needs_embedding=True),
        ]
        result = engine.execute(StepBatch(number, batch))
        seen.append((result.prompt_scores["scored"], result.embeddings["embedded"]))
    plain, adapted, once_more = seen
    assert plain == once_more and not set(plain) & set(adapted)


def test_each_module_may_have_a_rank_and_a_scale_of_its_own(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_model(model, "llama", head_dim=32, eos_token_id=None)
    plain = make_adapter(model, tmp_path / "plain", 1, strength=1.0)
    other = shutil.copytree(plain, tmp_path / "other")
    patterns = {"rank_pattern": dict.fromkeys(ALL, RANK), "alpha_pattern": dict.fromkeys(ALL, ALPHA)}
    config = json.loads((plain / "adapter_config.json").read_text()) | {"r": 4 * RANK, "lora_alpha": 1} | patterns
    (other / "adapter_config.json").write_text(json.dumps(config))
    engine = load(model, {"plain": plain, "other": other})
    said = [
        list(EngineDriver(engine, seed=3, max_tokens=64).run(requests_of(name, prompts_of(4))).values())
        for name in ("plain", "other", "")
    ]
    engine.close()
    assert said[0] == said[1] != said[2]


def test_one_that_is_not_loaded_is_refused(engine: Any, prompts: list[list[int]]) -> None:
    sampling = SamplingParams(1, 0.0, adapter="other")
    with pytest.raises(EngineError, match="the adapter 'other' is not loaded"):
        engine.execute(StepBatch(0, [Sequence("r", prompts[2], 0, [0], sampling, True)]))
    plain = Sequence("r", prompts[2], 0, [0], msgspec.structs.replace(sampling, adapter=""), True)
    assert engine.execute(StepBatch(1, [plain])).sampled


@pytest.mark.skipif(cpu_count() < 2, reason="two workers need two cores")
@pytest.mark.parametrize("degrees", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=["tensor", "pipeline"])
def test_workers_that_share_the_model_share_its_adapters(degrees: dict[str, int], tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_model(model, "llama", head_dim=32, eos_token_id=None, num_hidden_layers=4)
    adapters = {name: make_adapter(model, tmp_path / name, seed, strength=1.0) for seed, name in enumerate(NAMES[1:])}
    found: list[dict[str, list[int]]] = []
    for options in ({}, degrees):
        engine = load(model, adapters, num_threads=2 if options else 1, **options)  # here one: see changes_undone
        requests = [request for name in NAMES for request in requests_of(name, prompts_of(4))]
        found.append(EngineDriver(engine, seed=3, max_tokens=64, drop=0.1).run(requests))
        engine.close()
    alone, shared = found
    assert alone == shared
    assert len({tuple(tuple(alone[f"{name}-{i}"]) for i in range(4)) for name in NAMES}) == 3
