"""Greedy answers to the same prompts, compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

ROUNDING = 0.01  # of log probabilities: sums of another batch are added up in another order, in float32


@dataclass(frozen=True, slots=True)
class Answer:
    """Its tokens, and the log probability of each."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


Answers = Mapping[str, Answer]  # by custom ids


def answers_of(output_file: bytes) -> dict[str, Answer]:
    """Of a batch of ``/v1/completions`` whose bodies asked for ``logprobs``."""
    rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in output_file.splitlines()]
    shown = {row["custom_id"]: row["response"]["body"]["choices"][0]["logprobs"] for row in rows}
    return {key: Answer(tuple(each["tokens"]), tuple(each["token_logprobs"])) for key, each in shown.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``differing``: of ``total`` answers; ``largest_gap``: between the log probabilities of the two tokens at which an
    answer first differs. Up to there both have read the same, so that a gap within rounding is a tie, and a larger one
    is another computation."""

    total: int
    differing: int
    largest_gap: float

    def words(self) -> str:
        if not self.differing:
            return f"all {self.total} the same"
        told = f"{self.differing} of {self.total} differ, first at a gap of {self.largest_gap:.1g} at most"
        return told if self.largest_gap <= ROUNDING else f"{told}: MORE THAN ROUNDING"


def compared(ours: Answers, theirs: Answers) -> Comparison:
    """Raises ValueError where the prompts are not the same."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"{len(ours)} answers are compared with {len(theirs)} of other prompts")
    gaps = [_gap(ours[key], theirs[key]) for key in ours if ours[key].tokens != theirs[key].tokens]
    return Comparison(len(ours), len(gaps), max(gaps, default=0.0))


def together(comparisons: list[Comparison]) -> Comparison:
    total = sum(each.total for each in comparisons)
    gaps = [each.largest_gap for each in comparisons]
    return Comparison(total, sum(each.differing for each in comparisons), max(gaps, default=0.0))


def _gap(one: Answer, other: Answer) -> float:
    """0 where one is the beginning of the other: what ended it has no log probability here."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    place = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    return 0.0 if place is None else abs(one.logprobs[place] - other.logprobs[place])
