"""The batch of mixed lengths: its prompts, and how its answers are compared."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.lab.few_and_many import STORY, FewAndMany
from benchmarks.scheduling.answers import Answer, answers_of, compared, together
from loadgen.errors import WorkloadError
from loadgen.workload.prompts import load_tokenizer

SHAPE = FewAndMany(subjects=2, questions=3, examples_tokens=300, question_tokens=20, stories=4, passage_tokens=30)


def questions_file(path: Path, counts: dict[str, int], words: int) -> Path:
    """MMLU's form, gzip; ``counts``: questions by subject."""
    rows = [
        {
            "subject": subject,
            "question": f"Question {number} of {path.stem} about {subject}? " + "word " * words,
            "choices": ["this", "that", "both", "neither"],
            "answer": "C",
        }
        for subject, count in counts.items()
        for number in range(count)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def test_real_questions_are_of_subjects_with_enough_of_them_and_short_examples(
    tmp_path: Path, model_folder: Path
) -> None:
    shots = questions_file(tmp_path / "dev", {"algebra": 5, "botany": 5, "law": 5}, words=4)
    long_shots = questions_file(tmp_path / "long", {"algebra": 5, "botany": 5, "law": 5}, words=80)
    questions = questions_file(tmp_path / "test", {"law": 4, "algebra": 3, "botany": 2}, words=2)
    prompts = SHAPE.prompts(model_folder, shots, questions, None, seed=1)
    texts = [prompt.text or "" for prompt in prompts if prompt.max_tokens == SHAPE.answer_tokens]
    assert len(prompts) == 10 and len(texts) == 6
    assert sum("about algebra?" in text for text in texts) == sum("about law?" in text for text in texts) == 3
    assert all(text.count("Answer: C") == 5 and text.endswith("Answer:") for text in texts)
    assert [prompt.max_tokens for prompt in prompts] != sorted(prompt.max_tokens for prompt in prompts), "mixed"
    assert prompts == SHAPE.prompts(model_folder, shots, questions, None, seed=1)
    with pytest.raises(WorkloadError, match="only 0 subjects have 3 questions and examples of at most 300 tokens"):
        SHAPE.prompts(model_folder, long_shots, questions, None, seed=1)


def test_drawn_questions_share_their_examples(model_folder: Path) -> None:
    tokenizer = load_tokenizer(model_folder)
    prompts = SHAPE.prompts(model_folder, None, None, None, seed=0)
    asked = [tokenizer.encode(p.text or "").ids for p in prompts if p.max_tokens == SHAPE.answer_tokens]
    assert len(asked) == 6 and all(abs(len(ids) - 320) <= 16 for ids in asked)
    beginnings = {tuple(ids[:280]) for ids in asked}
    assert len(beginnings) == 2 and len({tuple(ids) for ids in asked}) == 6
    stories = [p.text or "" for p in prompts if p.max_tokens == SHAPE.story_tokens]
    assert len(stories) == len(set(stories)) == 4 and all(text.startswith(STORY) for text in stories)


def test_passages_are_cut_from_the_file(tmp_path: Path, model_folder: Path) -> None:
    (file := tmp_path / "play.txt").write_text("Speak, speak. We are accounted poor citizens. " * 40)
    prompts = SHAPE.prompts(model_folder, None, None, file, seed=0)
    assert sum("citizens" in (prompt.text or "") for prompt in prompts) == 4
    (short := tmp_path / "short.txt").write_text("Speak.")
    with pytest.raises(WorkloadError, match="too few for 4 passages"):
        SHAPE.prompts(model_folder, None, None, short, seed=0)


def answer(text: str, *logprobs: float) -> Answer:
    return Answer(tuple(text), logprobs or (-0.5,) * len(text))


def test_answers_that_differ_by_rounding_and_by_more() -> None:
    ours = {"a": answer("abc"), "b": answer("abc", -0.5, -0.7, -0.1), "c": answer("ab")}
    assert compared(ours, dict(ours)).words() == "all 3 the same"
    near = ours | {"b": answer("axy", -0.5, -0.7005, -3.0)}
    found = compared(ours, near)
    assert (found.total, found.differing, found.largest_gap) == (3, 1, pytest.approx(0.0005))
    assert found.words() == "1 of 3 differ, first at a gap of 0.0005 at most"
    far = ours | {"b": answer("axc", -0.5, -0.2, -0.1)}
    assert compared(ours, far).words().endswith("MORE THAN ROUNDING")
    assert compared(ours, ours | {"c": answer("abc")}).largest_gap == 0.0, "the end has no log probability"
    both = together([found, compared(ours, far)])
    assert (both.total, both.differing, both.largest_gap) == (6, 2, pytest.approx(0.5))
    with pytest.raises(ValueError, match="other prompts"):
        compared(ours, {"a": answer("abc")})


def test_answers_are_read_from_an_output_file() -> None:
    logprobs = {"tokens": [" B", "\n"], "token_logprobs": [-0.25, -1.0], "top_logprobs": None, "text_offset": [0, 2]}
    row = {"custom_id": "7", "response": {"body": {"choices": [{"text": " B\n", "logprobs": logprobs}]}}}
    assert answers_of(json.dumps(row).encode() + b"\n") == {"7": Answer((" B", "\n"), (-0.25, -1.0))}
