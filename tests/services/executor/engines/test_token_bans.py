"""Tokens that may not come: drawn of noise and by the simulator, held to what a naive look at the output says."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import sample
from services.executor.engines.sampling.token_bans import allowed_tokens
from services.executor.engines.sim import SimEngine
from shared.latency.linear import LinearLatencyModel
from shared.openai.structured_outputs import Constraint
from shared.protocol.executors import EngineSpec
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch, TokenHistory
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer

NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
PROMPT = [9, 9]
FEW = tuple(range(20, 26))
LENGTH = 24
WORDS = ((20,), (21, 22), (23, 23), (24, 25, 24))

Draw = Callable[[SampleRow], int]  # the next token


@pytest.fixture(scope="module")
def masks(model_folder: Path) -> Iterator[GrammarMasks]:
    made = GrammarMasks(model_folder)
    yield made
    made.close()


@pytest.fixture(params=["noise", "sim"])
def draw(request: pytest.FixtureRequest, masks: GrammarMasks, model_folder: Path) -> Draw:
    facts = ModelFacts.read(model_folder)

    def of_noise(row: SampleRow) -> int:
        generator = torch.Generator().manual_seed(row.sampling.seed * 1000 + row.position)
        noise = torch.randn(1, facts.vocab_size, generator=generator)
        noise[0, list(facts.eos_token_ids)] += 4.0
        return sample(noise, [row], masks)[0]

    spec = EngineSpec("m", "sim", "none", "float16", 512, facts.vocab_size, 16, 64, facts.eos_token_ids)
    engine = SimEngine(spec, NO_TIME, mean_output_tokens=3.0, model_path=model_folder)

    def simulated(row: SampleRow) -> int:
        assert row.history is not None
        tokens = row.history.token_ids
        sequence = Sequence(row.request_id, tokens, 0, [0, 1, 2], row.sampling, True, history=row.history)
        return engine.execute(StepBatch(0, [sequence])).sampled[row.request_id]

    return of_noise if request.param == "noise" else simulated


def drawn(draw: Draw, seed: int, **sampling: Any) -> list[int]:
    """An output of LENGTH tokens, whatever is among them."""
    params = SamplingParams(LENGTH, 0.9 * (seed % 2), seed=seed, **sampling)
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + LENGTH:
        row = SampleRow(params, len(tokens), TokenHistory(tokens, len(PROMPT)), f"r{seed}")
        tokens = [*tokens, draw(row)]
    return tokens[len(PROMPT) :]


def holds(output: list[int], word: tuple[int, ...]) -> bool:
    return any(tuple(output[at : at + len(word)]) == word for at in range(len(output)))


@pytest.mark.parametrize("seed", range(4))
def test_only_allowed_tokens_come_and_no_bad_word(draw: Draw, seed: int) -> None:
    free = drawn(draw, seed, allowed_token_ids=FEW)
    assert set(free) <= set(FEW) and any(holds(free, word) for word in WORDS)
    held = drawn(draw, seed, allowed_token_ids=FEW, bad_words=WORDS)
    assert set(held) <= set(FEW) and not any(holds(held, word) for word in WORDS)


@pytest.mark.parametrize("seed", range(4))
def test_no_end_comes_before_its_time(draw: Draw, seed: int, model_folder: Path) -> None:
    eos_token_ids = ModelFacts.read(model_folder).eos_token_ids
    ends = {*eos_token_ids, *FEW[:3]}
    output = drawn(draw, seed, min_tokens=10, stop_token_ids=FEW[:3], allowed_token_ids=(*eos_token_ids, *FEW))
    assert ends.isdisjoint(output[:10]) and not ends.isdisjoint(output[10:])
    (first, *_) = drawn(draw, seed, min_tokens=1, ignore_eos=True, allowed_token_ids=eos_token_ids)
    assert first in eos_token_ids


@pytest.mark.parametrize("seed", range(2))
def test_what_leaves_nothing_gives_way(draw: Draw, seed: int, model_folder: Path, tokenizer: Tokenizer) -> None:
    """A whole answer ends, however many tokens were to come; bad words come where nothing else may."""
    eos_token_ids = ModelFacts.read(model_folder).eos_token_ids
    assert set(drawn(draw, seed, allowed_token_ids=(20,), bad_words=((20,),))) == {20}
    assert set(drawn(draw, seed, allowed_token_ids=eos_token_ids, min_tokens=LENGTH)) <= set(eos_token_ids)
    grammar = Constraint("guided_choice", "choice", ["no"]).grammar(tokenizer)
    output = drawn(draw, seed, grammar=grammar, min_tokens=LENGTH, allowed_token_ids=FEW)
    end = next(place for place, token_id in enumerate(output) if token_id in eos_token_ids)
    assert tokenizer.decode(output[:end]) == "no"


def test_a_mask_is_what_one_by_one_would_be(masks: GrammarMasks) -> None:
    """Against a naive model, with outputs in which words have begun."""
    rng = random.Random(5)
    for _ in range(200):
        output = rng.choices(range(20, 26), k=rng.randrange(6))
        words = tuple(tuple(rng.choices(range(20, 26), k=rng.randint(1, 3))) for _ in range(3))
        sampling = SamplingParams(9, bad_words=words, allowed_token_ids=FEW, stop_token_ids=(25,), min_tokens=3)
        row = SampleRow(sampling, 0, TokenHistory(PROMPT + output, len(PROMPT)))
        early = {25, 2} if len(output) < 3 else set()
        bad = {each for each in FEW if any((*output, each)[-len(word) :] == word for word in words)}
        expected = set(FEW) - early - bad
        (mask,) = allowed_tokens([row], 64, (2,), masks)
        assert set(mask.nonzero()[0].tolist()) == (expected or set(FEW))
