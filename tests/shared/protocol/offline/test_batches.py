"""What batches and their results come to."""

import pytest

from shared.protocol.offline.batches import (
    SERVER_ERROR,
    WITHDRAWN,
    BatchRecord,
    InputTokensDetails,
    LineError,
    LineErrors,
    RequestCounts,
    Usage,
)
from shared.protocol.offline.learnt import LearntBy
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs


def record(codes: list[str] | None, claim: str = "") -> BatchRecord:
    errors = None if codes is None else LineErrors([LineError(code, "why") for code in codes])
    return BatchRecord("batch_1", "/v1/completions", "file-1", "24h", 1, 2, "failed", errors=errors, claim=claim)


def test_lines_are_left_until_they_are_completed_or_have_failed() -> None:
    counts = RequestCounts(total=10, completed=5, failed=2)
    assert (counts.done, counts.left) == (7, 3)
    assert (RequestCounts(4).done, RequestCounts(4).left) == (0, 4)


def test_tokens_are_those_of_input_and_output() -> None:
    usage = Usage.of(70, 40, 5)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (70, 5, 75)
    assert usage.input_tokens_details == InputTokensDetails(40, cache_write_tokens=0)
    assert usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    ("codes", "expected"), [(None, False), ([], False), (["bad_line"], False), (["bad_line", SERVER_ERROR], True)]
)
def test_a_batch_is_broken_where_the_server_could_not_go_on(codes: list[str] | None, expected: bool) -> None:
    assert record(codes).is_broken is expected


@pytest.mark.parametrize(("claim", "expected"), [("", False), ("request-1", False), (WITHDRAWN, True)])
def test_a_batch_is_withdrawn_by_its_claim(claim: str, expected: bool) -> None:
    assert record(None, claim).is_withdrawn is expected


def test_the_choices_of_a_result_are_its_own_and_the_others_in_their_order() -> None:
    logprobs = [TokenLogprobs(-0.5, [7], [-0.5])]
    others = [ChoiceOutput([8], FinishReason.STOP), ChoiceOutput([9, 9], FinishReason.LENGTH)]
    result = OfflineResult("batch_1.1", [7], FinishReason.LENGTH, logprobs=logprobs, other_choices=others)
    assert result.choices == [ChoiceOutput([7], FinishReason.LENGTH, logprobs), *others]


def test_what_was_learnt_has_a_key_for_each_that_can_use_it() -> None:
    """Whatever their names are made of; in hexadecimal digits."""
    users = [
        LearntBy("psm", "org/a model", "t", 16),
        LearntBy("psm", "org/a", " modelt", 16),
        LearntBy("psm", "org/a model", "t", 32),
        LearntBy("blend", "org/a model", "t", 16),
    ]
    keys = [each.key for each in users]
    assert len(set(keys)) == len(users) and keys == [each.key for each in users]
    assert all(len(bytes.fromhex(key)) == 16 for key in keys)
