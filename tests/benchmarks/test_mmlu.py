"""MMLU's prompts and how much of them is shared."""

import pytest

from benchmarks.figures.kinds.prefix_sharing import in_order, without_shared
from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.lab.few_shots import SHOTS, few_shot_prompts
from loadgen.errors import TraceError
from loadgen.workload.backlog import OfflinePrompt


def as_ids(*token_ids: list[int]) -> list[OfflinePrompt]:
    return [OfflinePrompt(1, body={"prompt": ids}) for ids in token_ids]


def test_prompts_are_five_answered_shots_and_a_question(options: TraceOptions) -> None:
    assert options.shots and options.questions
    prompts = few_shot_prompts(options.shots, options.questions, seed=0)
    assert len(prompts) == 80
    subjects = []
    for prompt in prompts:
        assert prompt.text is not None and prompt.max_tokens == 1
        assert prompt.text.count("Answer: B\n") == SHOTS and prompt.text.endswith("Answer:")
        subjects.append(prompt.text.split("\n", 1)[0])
    assert set(subjects) == {
        "The following are multiple choice questions (with answers) about moral disputes.",
        "The following are multiple choice questions (with answers) about virology.",
    }
    assert len(set(subjects[:10])) == 2, "shuffled"


def test_the_same_seed_gives_the_same_order(options: TraceOptions) -> None:
    assert options.shots and options.questions
    first, again, other = (few_shot_prompts(options.shots, options.questions, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_line_that_is_no_question_is_named(options: TraceOptions) -> None:
    assert options.shots and options.online
    with pytest.raises(TraceError, match=r"online\.csv, line 1"):
        few_shot_prompts(options.shots, options.online, seed=0)


def test_what_the_prompt_before_shares_is_deducted() -> None:
    prompts = as_ids([1, 2, 3, 4], [1, 2, 5], [9], [9], [9, 8])
    assert [prompt.num_prompt_tokens for prompt in without_shared(prompts)] == [4, 1, 1, 1, 1]


def test_psm_puts_together_what_shares_a_block() -> None:
    block, other = [1] * 16, [2] * 16
    prompts = as_ids([*block, 3], [*other, 3], [*block, 4], [*other, 4])
    assert in_order(prompts, "fcfs") == prompts
    assert in_order(prompts, "psm") == [prompts[index] for index in (0, 2, 1, 3)]
