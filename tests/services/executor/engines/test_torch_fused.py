"""Steps whose decodes and chunks share a launch of attention give the tokens of those where they do not.

Without a GPU the kernels run in Triton's interpreter, and the plain path beside them is that of the CPU.
"""

import random
from functools import partial
from pathlib import Path

import pytest
import torch

from kernels.paged_attention import AttentionMetadata
from services.executor.engines.torch.engine import TorchEngine
from shared.protocol.sampling import SamplingParams
from tests.kernels.rig import DEVICE, needs_triton
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model


@needs_triton
@pytest.mark.parametrize("family", ["llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_whole_requests(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under random mixing and recompute."""
    from kernels.gpu.batch import PagedBatch

    launched = 0
    new_counters = PagedBatch.new_counters

    def counted(batch: PagedBatch) -> torch.Tensor:
        nonlocal launched
        launched += 1
        return new_counters(batch)

    monkeypatch.setattr(PagedBatch, "new_counters", counted)
    save_model(tmp_path, family, **FAMILIES[family])
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 300) for _ in range(rng.randint(1, 30))] for _ in range(5)]
    outputs = []
    for fused in (False, True):
        engine = TorchEngine.load(
            tmp_path, "m", DEVICE, "float32", num_threads=1, num_blocks=60, block_size=8, fused_attention=fused
        )
        if fused:
            monkeypatch.setattr(AttentionMetadata, "of", partial(AttentionMetadata.of, paged=True))
        requests = [Request(f"r{i}", prompt, SamplingParams(8, temperature=0.0)) for i, prompt in enumerate(prompts)]
        outputs.append(EngineDriver(engine, seed=1, max_tokens=40, drop=0.05).run(requests))
        engine.close()
        assert bool(launched) == fused
    assert outputs[0] == outputs[1]
