"""What an executor can hold, and why it can never hold what it cannot."""

from dataclasses import replace
from typing import Any

import pytest

from shared.scheduling.limits import NO_PROMPT, Limits, why_never_held
from tests.shared.scheduling.factories import make_request

LIMITS = Limits(block_size=4, num_blocks=5, max_num_batched_tokens=16, max_num_seqs=2)


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "max_num_batched_tokens", "max_num_seqs"])
def test_a_limit_is_at_least_one(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    assert getattr(replace(LIMITS, **given), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        replace(LIMITS, **{name: 0})


def test_swapping_takes_no_negative_time() -> None:
    assert replace(LIMITS, swap_ms_per_slot=0.0) == LIMITS
    with pytest.raises(ValueError, match="swap_ms_per_slot must not be negative, not -1"):
        replace(LIMITS, swap_ms_per_slot=-1.0)


@pytest.mark.parametrize(
    ("prompt", "output", "context", "reason"),
    [
        (1, 0, 100, ""),
        (12, 8, 100, ""),
        (12, 9, 100, "up to 21 tokens do not fit the KV cache of 20 tokens"),
        (12, 9, 20, ""),
        (19, 9, 20, ""),
        (20, 0, 20, "20 tokens leave no room in the model's context of 20"),
        (0, 5, 20, NO_PROMPT),
    ],
)
def test_a_request_has_to_fit_the_context_and_with_its_answer_the_cache(
    prompt: int, output: int, context: int, reason: str
) -> None:
    """An answer ends where the context does."""
    assert why_never_held(make_request(prompt=prompt, max_tokens=output), LIMITS, context) == reason
