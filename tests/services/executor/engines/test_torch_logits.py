"""Biases and penalties on made-up logits, beside what their definitions say."""

import random
from typing import Any

import torch

from services.executor.engines.sampling.logits import adjusted
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import sample
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory

VOCAB = 50


def row(prompt: list[int], output: list[int], **sampling: Any) -> SampleRow:
    params = SamplingParams(max_tokens=9, **sampling)
    history = TokenHistory(prompt + output, len(prompt)) if params.adjusts_logits else None
    return SampleRow(params, len(prompt + output), history)


def by_definition(logits: list[float], row: SampleRow) -> list[float]:
    """One token at a time."""
    if row.history is None:
        return logits
    sampling, known = row.sampling, row.history.token_ids
    output = known[row.history.num_prompt_tokens :]
    found = []
    for token_id, logit in enumerate(logits):
        logit += dict(sampling.logit_bias).get(token_id, 0.0)
        if token_id in known:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        count = output.count(token_id)
        found.append(logit - count * sampling.frequency_penalty - (count > 0) * sampling.presence_penalty)
    return found


def random_row(rng: random.Random) -> SampleRow:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
    output = [rng.randrange(10) for _ in range(rng.choice([0, 1, 30]))]
    options: dict[str, Any] = {
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.uniform(0.5, 2),
        "logit_bias": tuple((token_id, rng.uniform(-9, 9)) for token_id in range(rng.randint(1, 9))),
    }
    return row(prompt, output, **{name: options[name] for name in rng.sample(list(options), rng.randint(0, 4))})


def test_logits_are_as_the_definitions_say() -> None:
    rng = random.Random(0)
    for size in (1, 7, 40):
        rows = [random_row(rng) for _ in range(size)]
        logits = torch.randn(size, VOCAB) * 4
        expected = torch.tensor([by_definition(*pair) for pair in zip(logits.tolist(), rows, strict=True)])
        before = logits.clone()
        torch.testing.assert_close(adjusted(logits, rows), expected)
        assert torch.equal(logits, before), "the model's own logits stay"


def test_the_ends_of_what_may_be_asked_for_leave_numbers() -> None:
    """A row without any would end the step of all."""
    logits = torch.randn(1, VOCAB)
    logits[0, :2] = torch.tensor([9.0, 0.0])
    ends = {"presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (5e-324, 10.0)}
    for name, values in ends.items():
        for value in (*values, 1e-46, 1e-40, 1e-30):
            found = adjusted(logits, [row([0, 1], [0, 1, 2], **{name: value})])
            assert torch.isfinite(found).all(), (name, value)
    assert sample(logits, [row([0, 1], [], repetition_penalty=1e-46, min_p=1e-46)]) == [0]


def test_rows_that_ask_for_nothing_cost_nothing() -> None:
    logits = torch.randn(2, VOCAB)
    assert adjusted(logits, [row([1], []), row([2], [3], temperature=0.0)]) is logits


def test_rows_beside_adjusted_ones_draw_what_they_drew() -> None:
    logits = torch.randn(20, VOCAB, dtype=torch.bfloat16)
    plain = [row([5], [6], seed=i, temperature=float(i % 3), top_k=i) for i in range(20)]
    mixed = [row([5], [6], logit_bias=((9, 100.0),)) if i % 4 == 1 else plain[i] for i in range(20)]
    expected = [9 if i % 4 == 1 else token for i, token in enumerate(sample(logits, plain))]
    assert sample(logits, mixed) == expected


def test_min_p_leaves_what_is_as_probable() -> None:
    logits = torch.full((4000, VOCAB), -9.0)
    logits[:, :3] = torch.tensor([0.6, 0.25, 0.15]).log()
    for min_p, kept in ((0.2, {0, 1, 2}), (0.26, {0, 1}), (1.0, {0})):
        rows = [SampleRow(SamplingParams(1, min_p=min_p), position) for position in range(4000)]
        assert set(sample(logits, rows)) == kept
    hot = [SampleRow(SamplingParams(1, min_p=0.26, temperature=2.0, top_p=0.999), p) for p in range(4000)]
    assert set(sample(logits, hot)) == {0, 1, 2}, "of the probabilities that the temperature makes"


def test_a_frequency_penalty_ends_repetition() -> None:
    """A model that always says 7 first: greedy, every token comes as often as the penalty lets it."""
    logits = torch.linspace(0.0, -0.01, VOCAB).roll(7)[None]
    output: list[int] = []
    for _ in range(2 * VOCAB):
        output += sample(logits, [row([7], output, temperature=0.0, frequency_penalty=1.0)])
    assert sorted(output) == sorted([*range(VOCAB), *range(VOCAB)])
