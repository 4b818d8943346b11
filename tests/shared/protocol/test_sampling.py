"""What follows from how the tokens of a request are to be chosen."""

from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.protocol.sampling import CHOICE_STRIDE, SEED_BITS, SamplingParams
from shared.scheduling.kv.block_hash import KVScope

TOKENS = st.lists(st.integers(0, 1000), max_size=3)
ALL = ("adjusts_logits", "forbids_tokens", "delays_end", "ends_at_limit")


@pytest.mark.parametrize(
    ("given_fields", "expected"),
    [
        ({}, ""),
        ({"ignore_eos": True}, "ends_at_limit"),
        ({"ignore_eos": True, "stop": ("end",)}, ""),
        ({"ignore_eos": True, "stop_token_ids": (5,)}, ""),
        ({"ignore_eos": True, "grammar": "root"}, "adjusts_logits forbids_tokens"),
        ({"temperature": 0.3, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "logprobs": 3}, ""),
        ({"presence_penalty": -0.5}, "adjusts_logits"),
        ({"frequency_penalty": 0.5}, "adjusts_logits"),
        ({"repetition_penalty": 1.5}, "adjusts_logits"),
        ({"logit_bias": ((5, 1.0),)}, "adjusts_logits"),
        ({"allowed_token_ids": (5,)}, "adjusts_logits forbids_tokens"),
        ({"bad_words": ((5, 6),)}, "adjusts_logits forbids_tokens"),
        ({"min_tokens": 1}, "adjusts_logits forbids_tokens delays_end"),
        ({"min_tokens": 1, "ignore_eos": True}, "ends_at_limit"),
        ({"min_tokens": 1, "ignore_eos": True, "stop_token_ids": (5,)}, "adjusts_logits forbids_tokens delays_end"),
        ({"stop_token_ids": (5,)}, ""),
    ],
)
def test_what_an_engine_has_to_do_for_it(given_fields: dict[str, Any], expected: str) -> None:
    sampling = SamplingParams(8, **given_fields)
    found = {name: getattr(sampling, name) for name in ALL}
    assert found == {name: name in expected.split() for name in ALL}


@pytest.mark.parametrize(("echo", "num_top"), list(product([False, True], [None, 0, 2])))
def test_an_answer_shows_the_prompt_or_its_scores(echo: bool, num_top: int | None) -> None:
    sampling = SamplingParams(8, echo=echo, prompt_logprobs=num_top, adapter="sql")
    assert sampling.shows_prompt is (echo or num_top is not None)
    assert sampling.kv_scope == KVScope(num_top, "sql")


@given(TOKENS, TOKENS, TOKENS, st.lists(TOKENS.filter(bool), max_size=3))
def test_the_largest_token_is_that_of_all_that_are_named(
    stops: list[int], allowed: list[int], biased: list[int], bad_words: list[list[int]]
) -> None:
    sampling = SamplingParams(
        8,
        stop_token_ids=tuple(stops),
        allowed_token_ids=tuple(allowed),
        logit_bias=tuple((each, 1.0) for each in biased),
        bad_words=tuple(map(tuple, bad_words)),
    )
    assert sampling.largest_token_id == max([0, *stops, *allowed, *biased, *chain.from_iterable(bad_words)])


@pytest.mark.parametrize("num_tokens", [0, 3, 8, 50])
def test_a_text_goes_on_with_the_last_tokens_of_its_prompt(num_tokens: int) -> None:
    prompt = list(range(100, 100 + num_tokens))
    assert list(SamplingParams(8).after(prompt).follows) == prompt[-8:]


@given(st.integers(0, 2**SEED_BITS - 1), st.integers(0, 50), st.integers(0, 50))
def test_the_seed_of_a_choice_is_that_of_so_many_steps(seed: int, first: int, second: int) -> None:
    """Whatever choice they are counted from."""
    sampling = SamplingParams(8, seed=seed)
    later = replace(sampling, seed=sampling.seed_of_choice(first))
    assert later.seed_of_choice(second) == sampling.seed_of_choice(first + second) < 2**SEED_BITS
    assert (sampling.seed_of_choice(1) - seed) % 2**SEED_BITS == CHOICE_STRIDE % 2**SEED_BITS
    assert sampling.seed_of_choice(0) == seed


def test_choices_of_requests_with_seeds_one_after_another_do_not_meet() -> None:
    seeds = [SamplingParams(8, seed=seed).seed_of_choice(index) for seed in range(100) for index in range(100)]
    assert len(set(seeds)) == 100 * 100
