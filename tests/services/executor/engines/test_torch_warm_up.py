"""The warm-up makes every attention kernel launch, whatever the GPU."""

from pathlib import Path

import msgspec
import pytest
import torch

from kernels.gpu.tiles import choose_num_splits, chunk_tile_shape, decode_tile_shape, fused_tile_shapes
from kernels.slots import StepLayout
from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.torch.warm_up import warm_up_batches
from shared.protocol.executors import EngineSpec
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model

SPEC = EngineSpec("m", "torch", "cuda-x", "bfloat16", 8192, 1000, 16, 4096, (0,))


@pytest.mark.parametrize("num_sms", [20, 132])
def test_every_variant_is_launched(num_sms: int) -> None:
    """Decodes and chunks, split and not, with and without direction."""
    variants = set()
    for batch in warm_up_batches(SPEC):
        layout = StepLayout.of(batch.sequences, SPEC.num_blocks, SPEC.block_size)
        is_decode = layout.num_decodes == 1
        shape = (
            decode_tile_shape(4, 128, torch.bfloat16, shared_bytes=1 << 18)
            if is_decode
            else chunk_tile_shape(4, 128, torch.bfloat16, shared_bytes=1 << 18)
        )
        splits = choose_num_splits(8, int(layout.seq_lens[0]), shape, num_sms)
        variants.add((is_decode, splits > 1, bool(layout.fills_right[0])))
    assert len(variants) == 8


@pytest.mark.parametrize("num_sms", [20, 132])
def test_every_variant_of_a_shared_launch_is_launched(num_sms: int) -> None:
    """Decodes split and not, chunks split and not, with and without direction."""
    shapes = fused_tile_shapes(4, 128, torch.bfloat16, shared_bytes=1 << 18)
    assert shapes is not None
    variants = set()
    for batch in warm_up_batches(SPEC, mixed=True):
        layout = StepLayout.of(batch.sequences, SPEC.num_blocks, SPEC.block_size)
        if len(batch.sequences) == 2 and layout.num_decodes == 1:
            are_split = (
                choose_num_splits(8, int(length), shape, num_sms) > 1
                for length, shape in zip(layout.seq_lens, (shapes.decode, shapes.chunk), strict=True)
            )
            variants.add((*are_split, bool(layout.fills_right[0])))
    assert len(variants) == 8


def test_a_small_pool_is_enough() -> None:
    small = msgspec.structs.replace(SPEC, num_blocks=1)
    sequences = [sequence for batch in warm_up_batches(small, mixed=True) for sequence in batch.sequences]
    assert sequences
    for sequence in sequences:
        assert len(sequence.block_table) == 1
        assert 1 <= sequence.num_computed_tokens + len(sequence.token_ids) <= small.block_size


def test_an_engine_executes_it(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", **FAMILIES["llama"])
    engine = TorchEngine.load(tmp_path, "test", device="cpu", num_blocks=8, num_threads=1)
    batches = list(warm_up_batches(engine.spec, mixed=True))
    assert batches
    for batch in batches:
        assert set(engine.execute(batch).sampled) == {s.request_id for s in batch.sequences}
    engine.close()
