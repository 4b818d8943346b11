"""What texts have by now, counted as they grow, against all of it counted anew."""

import random
from collections import Counter

import pytest
import torch

from services.executor.engines.sampling import seen_tokens
from services.executor.engines.sampling.logits import adjusted
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.seen_tokens import SeenTokens
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory


def changed(text: list[int], rng: random.Random) -> list[int]:
    """As a rule a token more; else several, or fewer, or another text that is as long, or a little longer."""
    new = [rng.randrange(12) for _ in range(rng.choice([1, 1, 1, 1, 3, 40]))]
    return rng.choice([text, text, text, text[: rng.randrange(len(text) + 1)], [1, *text[1:]], new * 5]) + new


def test_a_text_is_counted_as_if_it_were_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_tokens, "MAX_TEXTS", 3)
    rng, seen = random.Random(1), SeenTokens()
    texts: dict[str, list[int]] = {name: [] for name in "abcd"}
    for _ in range(2000):
        name, start = rng.choice("aaaabcd"), rng.choice([0, 0, 2])
        texts[name] = changed(texts[name], rng)
        told = list(texts[name])
        ids, counts = (each.tolist() for each in seen.of(name, told, start))
        assert dict(zip(ids, counts, strict=True)) == Counter(texts[name][start:])
        assert len(set(ids)) == len(ids) and told == texts[name]
        assert len(seen._texts) <= 3
        told.append(5)  # whoever told it goes on with it


def test_a_text_that_grows_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step the whole context was: with 64 requests of 8,000 tokens 30 ms of it."""
    seen, text = SeenTokens(), [number % 700 for number in range(3000)]
    seen.of("a", text)
    monkeypatch.setattr(seen_tokens.np, "unique", None)
    for token_id in (5, 900, 5):
        text.append(token_id)
        ids, counts = (each.tolist() for each in seen.of("a", text))
    assert (counts[ids.index(5)], counts[ids.index(900)], sum(counts)) == (7, 1, 3003)


@pytest.mark.parametrize(
    "wishes",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"repetition_penalty": 0.7, "presence_penalty": -0.4},
    ],
)
def test_logits_are_the_same_whatever_was_seen_before(wishes: dict[str, float]) -> None:
    rng, seen = random.Random(2), SeenTokens()
    sampling = SamplingParams(max_tokens=1, **wishes)  # type: ignore[arg-type]
    texts = [[rng.randrange(50) for _ in range(20)] for _ in range(3)]
    for _ in range(30):
        texts = [changed(text, rng)[:200] for text in texts]
        rows = [SampleRow(sampling, 1, TokenHistory(text, 4), f"{n % 2}") for n, text in enumerate(texts)]
        logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
        assert torch.equal(adjusted(logits, rows, None, seen), adjusted(logits, rows))
