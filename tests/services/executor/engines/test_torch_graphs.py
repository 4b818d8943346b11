"""Steps over static, padded inputs give the tokens of the plain path, decodes alone and any others.

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
from services.executor.engines.torch.graphs import Run, cuda_recorder, graph_sizes, warm_up
from services.executor.engines.torch.pieces import Cut, cuda_piece_recorder, token_sizes
from services.executor.engines.torch.pieces import Run as PieceRun
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch, TokenHistory
from tests.kernels.rig import DEVICE, needs_triton
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model

MAX_DECODES, MAX_TOKENS = 9, 40
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


class PieceReplays:
    """Likewise, and counts what is replayed."""

    def __init__(self) -> None:
        self.count = 0
        self._record = cuda_piece_recorder(torch.device(DEVICE)) if DEVICE == "cuda" else lambda run: run

    def __call__(self, run: PieceRun) -> PieceRun:
        replay = self._record(run)

        def counted(attend: Cut) -> torch.Tensor:
            self.count += 1
            return replay(attend)

        return counted


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
    assert token_sizes(10) == [10]
    assert token_sizes(128) == [16, 32, 64, 128]
    assert token_sizes(300) == [16, 32, 64, 128, 256, 300]


def test_what_is_recorded_is_told(llama_path: Path) -> None:
    """A profile of steps that replay graphs says nothing of those that do not."""
    engine = load(llama_path, num_blocks=40)
    variants = [engine.variant]
    engine.record_decodes(MAX_DECODES, Replays())
    variants.append(engine.variant)
    engine.record_pieces(MAX_TOKENS, MAX_DECODES, PieceReplays())
    variants += [engine.variant, load(llama_path, num_blocks=40, fused_attention=True).variant]
    assert variants == ["-eager", "-graphs9x0", "-graphs9x40", "-eager-fused"]


@needs_triton
def test_what_is_recorded_shares_the_memory_of_its_logits(llama_path: Path) -> None:
    """A graph's output stays taken for as long as the graph is there."""
    engine, replays, pieces = load(llama_path, num_blocks=40), Replays(), PieceReplays()
    of_decodes, of_pieces = list[torch.Tensor](), list[torch.Tensor]()

    def record(run: Run) -> Run:
        replay = replays(run)
        of_decodes.append(replay())
        return replay

    def record_pieces(run: PieceRun) -> PieceRun:
        replay = pieces(run)
        of_pieces.append(replay(lambda number: None))
        return replay

    engine.record_decodes(MAX_DECODES, record)
    engine.record_pieces(MAX_TOKENS, MAX_DECODES, record_pieces)
    assert [len(logits) for logits in of_decodes] == [9, 8, 4, 2, 1]
    assert [len(logits) for logits in of_pieces] == [9, 9, 9]
    for kept in (of_decodes, of_pieces):
        assert len({logits.data_ptr() for logits in kept}) == 1
    engine.close()


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


def run_to_the_end(engine: TorchEngine, seed: int, longest: int, num_tokens: int, max_tokens: int) -> Any:
    """Five greedy requests of up to ``longest`` tokens, in random mixes, computed again now and then; the engine is
    closed."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(2, 300) for _ in range(rng.randint(1, longest))] for _ in range(5)]
    greedy = SamplingParams(num_tokens, temperature=0.0)
    requests = [Request(f"r{i}", prompt, greedy) for i, prompt in enumerate(prompts)]
    outputs = EngineDriver(engine, seed=1, max_tokens=max_tokens, drop=0.05).run(requests)
    engine.close()
    return outputs


@needs_triton
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_whole_requests(family: str, tmp_path: Path) -> None:
    """Under random mixing and recompute: replays and plain steps take turns on one KV cache."""
    save_model(tmp_path, family, **FAMILIES[family])
    outputs = []
    for max_decodes in (0, MAX_DECODES):
        engine, replays = load(tmp_path, num_blocks=60, block_size=8), Replays()
        engine.record_decodes(max_decodes, replays)
        outputs.append(run_to_the_end(engine, seed=0, longest=30, num_tokens=8, max_tokens=40))
    assert outputs[0] == outputs[1]
    assert len(replays.sizes) > 5 and {1, 2} < set(replays.sizes)


@needs_triton
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_whole_requests_in_pieces(family: str, tmp_path: Path) -> None:
    """Chunks beside decodes, replays beside plain steps."""
    save_model(tmp_path, family, **FAMILIES[family])
    outputs = []
    for max_tokens in (0, MAX_TOKENS):
        engine, replays = load(tmp_path, num_blocks=60, block_size=8), PieceReplays()
        engine.record_pieces(max_tokens, MAX_DECODES, replays)
        assert engine.piece_sizes == ([16, 32, 40] if max_tokens else [])
        outputs.append(run_to_the_end(engine, seed=1, longest=50, num_tokens=6, max_tokens=48))
    assert outputs[0] == outputs[1]
    assert replays.count > 5


@needs_triton
def test_no_piece_holds_too_many_tokens_or_samples(llama_path: Path) -> None:
    """Nor writes KV that is no token's, in either direction."""
    plain, recorded, replays = load(llama_path, num_blocks=40), load(llama_path, num_blocks=40), PieceReplays()
    recorded.record_pieces(32, 2, replays)

    def sequence(number: int, num_tokens: int, samples: bool = True) -> Sequence:
        tokens, table = [2 + number] * num_tokens, [3 * number, 3 * number + 1, 3 * number + 2]
        return Sequence(f"r{number}", tokens, 0, table, GREEDY, samples, number % 2 == 1)

    steps = [
        ([sequence(0, 33)], 0),
        ([sequence(1, 20), sequence(2, 12)], 1),
        ([sequence(i, 3) for i in range(3, 6)], 1),
        ([sequence(i, 3, samples=i < 8) for i in range(6, 10)], 2),
        ([sequence(10, 7, samples=False)], 3),
    ]
    for step, (sequences, replayed) in enumerate(steps):
        batch = StepBatch(step, sequences)
        assert recorded.execute(batch).sampled == plain.execute(batch).sampled
        assert replays.count == replayed, step
    for ours, theirs in zip(recorded._kv_caches.values(), plain._kv_caches.values(), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not ours[33:].any()
    plain.close()
    recorded.close()


@needs_triton
def test_an_interrupted_piece_leaves_all_as_it_was(llama_path: Path) -> None:
    plain, recorded, replays = load(llama_path, num_blocks=16), load(llama_path, num_blocks=16), PieceReplays()
    recorded.record_pieces(32, 2, replays)
    batch = StepBatch(1, [Sequence("r", [5, 6, 7], 0, [3], GREEDY, True)], may_be_interrupted=True)
    recorded.interrupt(1)
    assert recorded.execute(batch).is_interrupted
    assert replays.count == 1
    again = StepBatch(2, batch.sequences, may_be_interrupted=True)
    assert recorded.execute(again).sampled == plain.execute(again).sampled != {}
    plain.close()
    recorded.close()


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


def test_what_waits_for_the_device_is_found_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, ran_in = ["default"], list[str]()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def run() -> None:
        ran_in.append(modes[-1])
        if waits and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    waits = False
    warm_up(run)
    assert ran_in == ["default", "error"] and modes[-1] == "default"
    waits = True
    with pytest.raises(RuntimeError, match="synchronizing"):
        warm_up(run)
    assert modes[-1] == "default"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_pass_that_waits_leaves_the_allocator_as_it_was() -> None:
    """What another stream has used is free once that is done."""
    device = torch.device("cuda")
    number, other = torch.ones(1, device=device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="synchronizing"):
        cuda_recorder(device)(lambda: number * number.item())
    before = active_bytes(device)
    for _ in range(3):
        used = torch.empty(1 << 20, device=device)
        used.record_stream(other)
        del used
    torch.cuda.synchronize(device)
    assert active_bytes(device) == before


def active_bytes(device: torch.device) -> int:
    """Taken, or not yet free: whether it is, the allocator looks when it is asked for memory."""
    torch.empty(1, device=device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.current"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would record it")
def test_what_cannot_be_recorded_runs_plainly(llama_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = load(llama_path, num_blocks=16)
    batch = StepBatch(0, [Sequence("r", [5], 0, [3], GREEDY, True)])
    expected = engine.execute(batch).sampled
    with caplog.at_level(logging.WARNING):
        engine.record_decodes(4)
        engine.record_pieces(32, 4)
    said = ["decodes run without CUDA graphs", "chunks run without CUDA graphs"]
    assert [record.message for record in caplog.records] == said
    assert engine.graph_sizes == engine.piece_sizes == []
    assert engine.execute(batch).sampled == expected
    engine.close()
