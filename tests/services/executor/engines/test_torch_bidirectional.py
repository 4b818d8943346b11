"""The torch engine with requests that share blocks: greedy outputs are those of an undisturbed run, token for token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.executor.engines.torch.engine import TorchEngine
from shared.errors import ConfigError, EngineError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.scheduling.kv.slot_transfers import SlotOperations
from tests.services.executor.engines.test_torch_host_pool import DEVICES
from tests.shared.replica.bidirectional_rig import disturbed, greedy_requests, undisturbed

NUM_BLOCKS, NUM_HOST_SLOTS = 40, 300


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[TorchEngine]:
    """In float32: a bit of rounding is not to decide between two tokens."""
    loaded = TorchEngine.load(
        shallow_model,
        "test",
        device=request.param,
        dtype="float32",
        num_blocks=NUM_BLOCKS,
        num_threads=1,
        num_host_slots=NUM_HOST_SLOTS,
    )
    yield loaded
    loaded.close()


@pytest.mark.slow
def test_outputs_equal_an_undisturbed_run(engine: TorchEngine, shallow_model: Path) -> None:
    requests = greedy_requests(shallow_model)
    outputs, totals = disturbed(engine, requests, num_blocks=9, seed=3)
    assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots) > 0
    assert outputs == undisturbed(engine, requests)


def test_host_slots_are_sized_from_memory_or_refused(shallow_model: Path) -> None:
    sized = TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=4, num_host_slots=None)
    assert sized.spec.num_host_slots == 4 * 16
    sized.close()
    with pytest.raises(ConfigError, match=r"host slots of \d+ bytes: ask for fewer"):
        TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=4, num_host_slots=1 << 40)


def test_without_host_slots_nothing_is_copied(shallow_model: Path) -> None:
    plain = TorchEngine.load(shallow_model, "test", device="cpu", num_blocks=4)
    sequence = Sequence("r", [1, 2, 3], 0, [0], SamplingParams(1, temperature=0.0), True)
    with pytest.raises(EngineError, match="without host slots"):
        plain.execute(StepBatch(0, [sequence], [SlotOperations(moves=[(5, 6)])]))
    assert plain.spec.num_host_slots == 0 and "r" in plain.execute(StepBatch(1, [sequence])).sampled
    plain.close()
