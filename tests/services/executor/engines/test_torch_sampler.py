"""The sampler on made-up logits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.executor.engines.sampling import sampler
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import NO_TOKEN, gather_logprobs, sample, uniforms
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory

VOCAB = 5000


def rows(count: int, **sampling: float) -> list[SampleRow]:
    params = SamplingParams(max_tokens=1, **sampling)  # type: ignore[arg-type]
    return [SampleRow(params, position) for position in range(count)]


def logits_of(probabilities: list[float]) -> torch.Tensor:
    """[1, VOCAB]: ids spread over the vocabulary carry ``probabilities``, the rest nothing."""
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, torch.arange(len(probabilities)) * 700 + 11] = torch.tensor(probabilities).log()
    return logits


def test_known_answers_of_philox() -> None:
    """Philox4x32-10 of Random123's kat_vectors: key and counter zero give 6627e8d5 e169c58d ..."""
    zero = np.zeros(1, dtype=np.uint64)
    expected = ((0x6627E8D5 << 32 | 0xE169C58D) >> 11) * 2.0**-53
    assert uniforms(zero, zero)[0] == expected


def test_uniforms_are_even_and_unlike_their_neighbours() -> None:
    count = 20000
    positions = np.arange(count, dtype=np.uint64)
    drawn = uniforms(np.full(count, 42, dtype=np.uint64), positions)
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    assert np.abs(np.histogram(drawn, bins=10)[0] / count - 0.1).max() < 0.01
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02
    other_seed = uniforms(np.full(count, 43, dtype=np.uint64), positions)
    assert abs(np.corrcoef(drawn, other_seed)[0, 1]) < 0.02
    assert len(np.unique(drawn)) == count


@pytest.mark.parametrize("vocab_size", [3, 255, 256, 257, 1000, 1024])
@pytest.mark.parametrize("values", [1, 3, 1000], ids="{} values".format)
def test_greedy_is_the_first_of_the_greatest(vocab_size: int, values: int) -> None:
    logits = torch.randint(values, (50, vocab_size), generator=torch.Generator().manual_seed(vocab_size)).float()
    assert sample(logits, rows(50, temperature=0.0)) == logits.numpy().argmax(axis=1).tolist()
    assert sample(logits[:0], []) == []
    logits[range(50), torch.arange(50) * 7 % vocab_size] = math.nan
    assert sample(logits, rows(50, temperature=0.0)) == [NO_TOKEN] * 50


def test_greedy_and_top_k_one_are_the_argmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, VOCAB)
    argmax = logits.argmax(-1).tolist()
    assert sample(logits, rows(40, temperature=0.0)) == argmax
    assert sample(logits, rows(40, temperature=2.0, top_k=1)) == argmax
    assert sample(logits, rows(40, temperature=2.0, top_p=0.0)) == argmax
    for temperature in (1e-9, 1e-38, 1e-40, 1e-46, 1e-310):
        assert sample(logits, rows(40, temperature=temperature)) == argmax
        assert sample(logits, rows(40, temperature=temperature, top_k=9, top_p=0.5, min_p=0.1)) == argmax
    for least in (1e-46, 1e-310):
        assert sample(logits, rows(40, temperature=2.0, top_p=least)) == argmax


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 5),
        ({"top_k": 3}, 3),
        ({"top_k": VOCAB + 1}, 5),
        ({"top_p": 0.75}, 2),
        ({"top_p": 0.81}, 3),
        ({"top_p": 0.95}, 4),
        ({"top_k": 2, "top_p": 0.6}, 1),  # top_p counts what top_k left: 0.5 / 0.8 is over 0.6
        ({"top_k": 2, "top_p": 0.63}, 2),
    ],
)
def test_cuts_are_exact_and_frequencies_follow(options: dict[str, float], kept: int) -> None:
    probabilities = [0.5, 0.3, 0.1, 0.06, 0.04]
    count = 4000
    drawn = sample(logits_of(probabilities).expand(count, -1), rows(count, temperature=1.0, **options))
    share = np.bincount([(token - 11) // 700 for token in drawn], minlength=5) / count
    expected = np.array(probabilities) * (np.arange(5) < kept)
    assert (share > 0).sum() == kept
    assert np.abs(share - expected / expected.sum()).max() < 0.025


def test_temperature_sharpens() -> None:
    drawn = sample(logits_of([0.6, 0.4]).expand(4000, -1), rows(4000, temperature=0.5))
    assert abs(drawn.count(11) / 4000 - 0.36 / (0.36 + 0.16)) < 0.025


def test_wide_nucleus_reaches_beyond_the_first_candidates() -> None:
    """A flat distribution: top_p 0.5 keeps exactly the more probable half."""
    logits = torch.linspace(0.0, 1e-3, VOCAB)[None].expand(3000, -1)
    drawn = sample(logits, rows(3000, temperature=1.0, top_p=0.5))
    assert min(drawn) >= VOCAB // 2 - 2
    assert max(drawn) > VOCAB - 50 and min(drawn) < VOCAB // 2 + 50
    assert max(sample(logits, rows(3000, temperature=1.0, top_p=0.5, top_k=2000))) > VOCAB - 50


def test_rows_do_not_touch_each_other() -> None:
    torch.manual_seed(1)
    logits = torch.randn(30, VOCAB) * 3
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.7, "top_k": 20, "seed": 8},
        {"temperature": 1.3, "top_p": 0.9, "seed": 9},
        {"temperature": 1.0, "top_p": 0.999, "seed": 2**63 + 5},
    ]
    mixed = [SampleRow(SamplingParams(max_tokens=1, **kinds[i % 5]), i) for i in range(30)]  # type: ignore[arg-type]
    together = sample(logits, mixed)
    assert together == [sample(logits[i : i + 1], mixed[i : i + 1])[0] for i in range(30)]


class MostNumbers(TorchDispatchMode):
    """That a tensor holds which is computed meanwhile, but for those in the memory of ``known``."""

    def __init__(self, known: torch.Tensor) -> None:
        super().__init__()
        self.count = 0
        self._known = known.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        computed = func(*args, **(kwargs or {}))
        for each in computed if isinstance(computed, tuple | list) else (computed,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() != self._known:
                self.count = max(self.count, each.numel())
        return computed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"temperature": 5.0, "top_p": 0.99}], ids=str)
def test_many_rows_take_no_more_memory_than_some(
    sampling: dict[str, float], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are drawn, and told, as if all were looked at together."""
    torch.manual_seed(2)
    logits, asked = (torch.randn(40, VOCAB) * 3).to(dtype), rows(40, logprobs=3, **sampling)
    whole = sample(logits, asked)
    told = gather_logprobs(logits, asked, whole)
    monkeypatch.setattr(sampler, "SLICE_LOGITS", 7 * VOCAB)
    with MostNumbers(logits) as most:
        assert sample(logits, asked) == whole
        again = gather_logprobs(logits, asked, whole)
    assert most.count == 7 * VOCAB
    assert told is not None and again is not None
    assert torch.equal(again[0], told[0]) and torch.equal(again[1], told[1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_a_number_has_no_token(temperature: float) -> None:
    torch.manual_seed(2)
    logits = torch.randn(4, VOCAB)
    whole, sampled_rows = logits.clone(), rows(4, temperature=temperature, top_p=0.5, logprobs=1)
    logits[1, 17], logits[2] = math.nan, -math.inf
    expected = sample(whole, sampled_rows)
    tokens = sample(logits, sampled_rows)
    assert tokens == [expected[0], NO_TOKEN, NO_TOKEN, expected[3]]
    gathered, unharmed = gather_logprobs(logits, sampled_rows, tokens), gather_logprobs(whole, sampled_rows, expected)
    assert gathered is not None and unharmed is not None
    for found, wanted in zip(gathered, unharmed, strict=True):
        assert found[[0, 3]].equal(wanted[[0, 3]]) and not found[[1, 2]].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_equally_probable_tokens_the_order_is_nobody_elses_affair(dtype: torch.dtype) -> None:
    """Logits of half precision have many; another request of the step asks for more candidates, or for penalties, for
    which its logits become float32."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(1, VOCAB)).to(dtype)
    ranked = sorted(range(VOCAB), key=lambda token: (-logits[0, token].item(), token))
    drawn = set()
    for position in range(60):
        row = SampleRow(SamplingParams(max_tokens=1, top_k=50, seed=7), position)
        alone = sample(logits, [row])
        mates = [SamplingParams(max_tokens=1, top_k=top_k, seed=7) for top_k in (400, 4999)]
        for sampling in (*mates, SamplingParams(max_tokens=1, presence_penalty=0.5, top_k=400)):
            history = TokenHistory([5, 6], 1) if sampling.adjusts_logits else None
            mate = SampleRow(sampling, position, history)
            assert sample(logits.repeat(2, 1), [row, mate])[:1] == alone
        drawn.update(alone)
    assert drawn <= set(ranked[:50]) and len(drawn) > 10


def test_nor_is_which_of_them_are_told_with_a_token() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        logits = (2 * torch.randn(1, VOCAB)).to(torch.bfloat16)
        row, mate = (SampleRow(SamplingParams(max_tokens=1, logprobs=num_top), 0) for num_top in (3, 20))
        alone, beside = gather_logprobs(logits, [row], [5]), gather_logprobs(logits.repeat(2, 1), [row, mate], [5, 6])
        assert alone is not None and beside is not None
        ranked = sorted(range(VOCAB), key=lambda token: (-logits[0, token].item(), token))
        assert alone[0][0].tolist() == beside[0][0, :4].tolist() == [5, *ranked[:3]]
        assert alone[1][0].tolist() == beside[1][0, :4].tolist()
