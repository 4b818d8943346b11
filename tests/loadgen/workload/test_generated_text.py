"""Text that stands for real text, and pieces that are cut from it."""

import pytest

from loadgen.workload.prompts import Calibration, generated_text, text_prompts, token_id_prompts
from loadgen.workload.traces import TraceRequest


@pytest.mark.parametrize("num_words", [1, 7, 16, 1000])
def test_so_many_words_in_sentences_and_the_same_each_time(num_words: int) -> None:
    text = generated_text(num_words)
    assert text == generated_text(num_words) and len(text.split()) == num_words
    assert text.endswith(".") and all(sentence[:1].isupper() for sentence in text.split(". "))


def test_words_and_sentences_are_of_different_lengths() -> None:
    sentences = [sentence.split() for sentence in generated_text(20_000).split(". ")]
    assert {len(sentence) for sentence in sentences[:-1]} == set(range(5, 16))
    assert {len(word.strip(".")) for sentence in sentences for word in sentence} == {4, 6, 8}


def test_pieces_differ_after_their_beginning_as_well() -> None:
    prompts = token_id_prompts(None, None, "salt")
    samples = [prompts.sample(300, f"probe {number}") for number in range(100)]
    assert {len(sample) for sample in samples} == {300}
    for place in (0, 8, 100):
        assert len({tuple(sample[place : place + 8]) for sample in samples}) == 100


def test_blocks_follow_the_calibration() -> None:
    """Blocks of 64 tokens are 32 words of two tokens each."""
    prompts = text_prompts(None, None, "salt")
    prompts.calibration = Calibration(tokens_per_unit=2.0)
    first, second = (
        str(prompts.prompt(TraceRequest(0.0, 200, 1, (1, last), 64), index)).split()
        for index, last in enumerate((2, 3))
    )
    assert len(first) == len(second) == 100
    assert first[:32] == second[:32] and first[32] != second[32]
