"""Quantized weights on the vllm engine: as the torch engine computes the numbers that they stand for."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.vllm.environment import import_vllm
from services.executor.prepare_model import require_runnable
from shared.errors import ModelError
from tests.services.executor.engines.engine_driver import EngineDriver
from tests.services.executor.engines.engine_prompts import encoded_prompts, requests_of
from tests.services.executor.engines.quantized_models import write_rounded
from tests.with_vllm import WITH_VLLM

pytestmark = WITH_VLLM

NUM_PROMPTS = 16
LEAST_ALIKE = 10  # of their first tokens: both round to bfloat16, each in its own way
DTYPE = "bfloat16"


def load_vllm(folder: Path) -> Any:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    sizes = {"num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    return VllmEngine.load(folder, "test", VllmOptions(1, dtype=DTYPE, **sizes))


def load_torch(folder: Path) -> Any:
    from services.executor.engines.torch.engine import TorchEngine

    return TorchEngine.load(folder, "test", device="cpu", num_blocks=400, num_threads=1, dtype=DTYPE)


@pytest.fixture(scope="module")
def prompts(model_folder: Path) -> list[list[int]]:
    return encoded_prompts(model_folder)[-NUM_PROMPTS:]


@pytest.fixture(params=["gptq", "awq"])
def folders(request: pytest.FixtureRequest, model_folder: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Quantized, and with full weights of the same meaning."""
    write_rounded(model_folder, request.param, tmp_path / "quantized", tmp_path / "full")
    yield tmp_path / "quantized", tmp_path / "full"


def first_tokens(engine: Any, prompts: list[list[int]]) -> list[int]:
    with closing(engine):
        outputs = EngineDriver(engine, seed=3, max_tokens=64, drop=0.05).run(requests_of(prompts, max_tokens=4))
    return [output[0] for output in outputs.values()]


HAS_FEW_BITS = torch.cuda.is_available() or torch.cpu._is_avx512_supported()  # vLLM's kernel for a CPU needs it


@pytest.mark.skipif(not HAS_FEW_BITS, reason="vLLM has no kernel for them here")
def test_quantized_weights_give_the_tokens_of_what_they_stand_for(
    folders: tuple[Path, Path], prompts: list[list[int]]
) -> None:
    quantized, full = folders
    expected = first_tokens(load_torch(full), prompts)
    got = first_tokens(load_vllm(quantized), prompts)
    alike = sum(ours == theirs for ours, theirs in zip(got, expected, strict=True))
    assert alike >= LEAST_ALIKE and len(set(got)) > 4, f"{alike} of {NUM_PROMPTS}"
    require_runnable(quantized, "vllm")


@pytest.mark.skipif(HAS_FEW_BITS, reason="they run here")
def test_weights_that_no_kernel_here_multiplies_are_refused_when_they_are_loaded(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ModelError, match=r"few bits.*AVX-512"):
        load_vllm(folders[0])


@pytest.mark.skipif(torch.cuda.is_available() or torch.cpu._is_amx_tile_supported(), reason="FP8 may run here")
def test_fp8_without_a_device_for_it_is_refused(model_folder: Path, tmp_path: Path) -> None:
    write_rounded(model_folder, "fp8", tmp_path / "quantized", tmp_path / "full")
    with pytest.raises(ModelError, match="vLLM cannot run the model"):
        load_vllm(tmp_path / "quantized")
