"""Decode steps over static, padded inputs give the tokens of the plain path.

Without a GPU nothing is recorded: the forward pass itself runs over the static inputs, attention in Triton's
interpreter, where a GPU would replay a graph. The plain path beside it is that of the CPU.
"""

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.torch.graphs import Run, cuda_recorder, graph_sizes
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch, TokenHistory
from tests.kernels.rig import DEVICE, needs_triton
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model

MAX_DECODES = 9
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9, seed=5)
PENALISED = SamplingParams(max_tokens=1, temperature=0.0, frequency_penalty=0.5, logit_bias=((7, 1.0),))


class Replays:
    """Records as the device can, and notes the sizes that are replayed. On the CPU nothing can be recorded: there the
    forward pass itself runs over the static inputs, its kernels in Triton's interpreter."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._record = cuda_recorder(torch.device(DEVICE)) if DEVICE == "cuda" else lambda run: run

    def __call__(self, run: Run) -> Run:
        replay = self._record(run)

        def noted() -> torch.Tensor:
            logits = replay()
            self.sizes.append(len(logits))
            return logits

        return noted


def load(path: Path, **options: Any) -> TorchEngine:
    return TorchEngine.load(path, "m", device=DEVICE, dtype="float32", num_threads=1, **options)


@pytest.fixture(scope="module")
def llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", **FAMILIES["llama"])
    return path


@pytest.fixture(params=[4, 16])
def engines(llama_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[TorchEngine, TorchEngine, Replays]]:
    """The same model twice: plain, and with decodes of up to MAX_DECODES recorded."""
    pool = {"block_size": request.param, "num_blocks": 400 // request.param}
    plain, recorded, replays = load(llama_path, **pool), load(llama_path, **pool), Replays()
    recorded.record_decodes(MAX_DECODES, replays)
    yield plain, recorded, replays
    plain.close()
    recorded.close()


def test_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(9) == [1, 2, 4, 8, 9]
    assert graph_sizes(256) == [1, 2, 4, *range(8, 257, 8)]


@needs_triton
def test_random_decode_batches(engines: tuple[TorchEngine, TorchEngine, Replays]) -> None:
    """Around every edge of the recorded sizes, of both directions, greedy and drawn, some rows not sampled."""
    plain, recorded, replays = engines
    rng = random.Random(plain.spec.block_size)
    sequences = prefilled(rng, [plain, recorded])
    for step, count in enumerate((9, 1, 2, 3, 4, 5, 8, 7, 9, 10)):
        batch = StepBatch(step, [next_token(sequence, rng) for sequence in rng.sample(sequences, count)])
        sampled = recorded.execute(batch).sampled
        assert sampled == plain.execute(batch).sampled, f"{count} decodes"
        assert sampled.keys() == {sequence.request_id for sequence in batch.sequences if sequence.needs_sample}
    assert replays.sizes == [9, 1, 2, 4, 4, 8, 8, 8, 9], "and 10 ran plainly"


def prefilled(rng: random.Random, engines: list[TorchEngine]) -> list[Sequence]:
    """Ten sequences of up to 30 tokens whose KV each engine holds but for the last token, at the left of their blocks
    or at the right."""
    size = engines[0].spec.block_size
    free = rng.sample(range(engines[0].spec.num_blocks), engines[0].spec.num_blocks)
    sequences = []
    for number in range(10):
        length = rng.choice([1, size - 1, size, size + 1, 30])
        table = [free.pop() for _ in range(-(-(length + 1) // size))]
        tokens = [rng.randrange(2, 300) for _ in range(length)]
        sequences.append(Sequence(f"r{number}", tokens, 0, table, GREEDY, False, rng.random() < 0.5))
    for engine in engines:
        engine.execute(StepBatch(0, sequences))
    return sequences


def next_token(sequence: Sequence, rng: random.Random) -> Sequence:
    sampling, needs_sample = rng.choice([GREEDY, SAMPLED, PENALISED]), rng.random() < 0.8
    token, computed = rng.randrange(2, 300), len(sequence.token_ids)
    table, right = sequence.block_table, sequence.fills_right
    history = TokenHistory([*sequence.token_ids, token], computed // 2) if sampling is PENALISED else None
    return Sequence(sequence.request_id, [token], computed, table, sampling, needs_sample, right, history)


@needs_triton
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_whole_requests(family: str, tmp_path: Path) -> None:
    """Under random mixing and recompute: replays and plain steps take turns on one KV cache."""
    save_model(tmp_path, family, **FAMILIES[family])
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 300) for _ in range(rng.randint(1, 30))] for _ in range(5)]
    outputs = []
    for max_decodes in (0, MAX_DECODES):
        engine, replays = load(tmp_path, num_blocks=60, block_size=8), Replays()
        engine.record_decodes(max_decodes, replays)
        requests = [Request(f"r{i}", prompt, SamplingParams(8, temperature=0.0)) for i, prompt in enumerate(prompts)]
        outputs.append(EngineDriver(engine, seed=1, max_tokens=40, drop=0.05).run(requests))
        engine.close()
    assert outputs[0] == outputs[1]
    assert len(replays.sizes) > 5 and {1, 2} < set(replays.sizes)


@needs_triton
def test_a_step_beyond_the_recordings_runs_plainly(llama_path: Path) -> None:
    """A context longer than what graphs were recorded for, and a chunk."""
    engine, replays = load(llama_path, num_blocks=16, block_size=8, max_model_len=24), Replays()
    engine.record_decodes(4, replays)
    blocks = list(range(8))
    engine.execute(StepBatch(0, [Sequence("r", list(range(2, 42)), 0, blocks, GREEDY, False)]))
    engine.execute(StepBatch(1, [Sequence("r", [7], 40, blocks, GREEDY, True)]))
    assert replays.sizes == []
    engine.execute(StepBatch(2, [Sequence("r", [7], 20, blocks, GREEDY, True)]))
    assert replays.sizes == [1]
    engine.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would record it")
def test_what_cannot_be_recorded_runs_plainly(llama_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = load(llama_path, num_blocks=16)
    batch = StepBatch(0, [Sequence("r", [5], 0, [3], GREEDY, True)])
    expected = engine.execute(batch).sampled
    with caplog.at_level(logging.WARNING):
        engine.record_decodes(4)
    assert [record.message for record in caplog.records] == ["decodes run without CUDA graphs"]
    assert engine.graph_sizes == []
    assert engine.execute(batch).sampled == expected
    engine.close()
