"""The torch engine with requests that share blocks: greedy outputs are those of an undisturbed run, token for token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.executor.engine import Sequence, StepBatch
from services.executor.engines.torch_engine import TorchEngine
from services.executor.replica import Replica
from shared.errors import ConfigError, EngineError
from shared.protocol.messages import GenerateRequest, PlanEntry, SamplingParams, StepPlan
from shared.scheduling.batch import Limits, Policy
from shared.scheduling.kv_policy import kv_policy_named
from shared.scheduling.request import Kind
from shared.scheduling.slot_transfers import SlotOperations
from tests.scheduling.factories import MODEL
from tests.services.test_torch_host_pool import DEVICES

NUM_BLOCKS, NUM_HOST_SLOTS, MAX_TOKENS = 40, 300, 14
TEXTS = [
    "The tide comes in twice a day because",
    "A list of rivers in Europe, from the longest to the shortest: the Volga, the Danube, the Ural, the Dnieper,",
    "In the harbour the boats lay still. Nobody spoke of the storm, and nobody looked at the sea for long, since",
    "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n",
]


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[TorchEngine]:
    """In float32: a bit of rounding is not to decide between two tokens."""
    loaded = TorchEngine.load(
        model_folder,
        "test",
        device=request.param,
        dtype="float32",
        num_blocks=NUM_BLOCKS,
        num_threads=1,
        num_host_slots=NUM_HOST_SLOTS,
    )
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def requests(model_folder: Path) -> list[GenerateRequest]:
    """Each text once as an online and once as an offline request, and offline ones that begin alike."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    greedy = SamplingParams(MAX_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = [(kind, tokenizer.encode(text).ids) for text in TEXTS for kind in Kind]
    prompts += [(Kind.OFFLINE, tokenizer.encode(TEXTS[1] + end).ids) for end in (" the Don,", " and then")]
    return [GenerateRequest(str(n), kind, prompt, greedy, 0.0) for n, (kind, prompt) in enumerate(prompts)]


def run(replica: Replica, engine: TorchEngine, plan: StepPlan | None = None) -> None:
    batch = replica.begin(replica.schedule(plan, Policy(), MODEL), 0)
    if batch.sequences:
        replica.finish(engine.execute(batch))


def undisturbed(engine: TorchEngine, requests: list[GenerateRequest]) -> dict[str, list[int]]:
    replica = Replica(Limits(16, NUM_BLOCKS, 512, 32), engine.spec, None)
    for request in requests:
        replica.submit(request)
        while replica.has_work:
            run(replica, engine)
    return {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}


def random_plan(replica: Replica, rng: random.Random) -> StepPlan:
    """Some of what is held, in chunks of any length; some give way."""
    held = list(replica.table)
    entries = [PlanEntry(r.request_id, r.kind, rng.randint(1, 40)) for r in held if rng.random() < 0.7]
    lost = [r.request_id for r in held if r.kind is Kind.OFFLINE and rng.random() < 0.15]
    return StepPlan("executor-0", "epoch", 0, entries, [], lost, 0.0)


def test_outputs_equal_an_undisturbed_run(engine: TorchEngine, requests: list[GenerateRequest]) -> None:
    rng = random.Random(3)
    replica = Replica(Limits(16, 9, 64, 32), engine.spec, None, kv_policy=kv_policy_named("bidirectional"))
    waiting = sorted(requests, key=lambda request: request.kind)
    outputs: dict[str, list[int]] = {}
    while waiting or replica.has_work:
        if waiting and rng.random() < 0.4:
            replica.submit(waiting.pop())  # offline requests first, so that there is something to take
        run(replica, engine, random_plan(replica, rng) if rng.random() < 0.6 else None)
        replica.pool.check_integrity()
        outputs |= {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}
    totals = replica.totals
    assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots) > 0
    assert outputs == undisturbed(engine, requests)


def test_host_slots_are_sized_from_memory_or_refused(model_folder: Path) -> None:
    sized = TorchEngine.load(model_folder, "test", device="cpu", num_blocks=4, num_host_slots=None)
    assert sized.spec.num_host_slots == 4 * 16
    sized.close()
    with pytest.raises(ConfigError, match=r"host slots of \d+ bytes: ask for fewer"):
        TorchEngine.load(model_folder, "test", device="cpu", num_blocks=4, num_host_slots=1 << 40)


def test_without_host_slots_nothing_is_copied(model_folder: Path) -> None:
    plain = TorchEngine.load(model_folder, "test", device="cpu", num_blocks=4)
    sequence = Sequence("r", [1, 2, 3], 0, [0], SamplingParams(1, temperature=0.0), True)
    with pytest.raises(EngineError, match="without host slots"):
        plain.execute(StepBatch(0, [sequence], SlotOperations(moves=[(5, 6)])))
    assert plain.spec.num_host_slots == 0 and "r" in plain.execute(StepBatch(1, [sequence])).sampled
    plain.close()
