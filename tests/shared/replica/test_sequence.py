"""A request's tokens while it lives on an executor: when it ends, what is told of it, and what its blocks are."""

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import TokenLogprobs, TokenOutput
from shared.replica.outputs import Ended, ended_request, final_output, token_output
from shared.replica.prompt_scores import PromptScoring
from shared.replica.sequence import LiveSequence, scheduled
from shared.scheduling.kv.block_hash import hash_chain, prompt_chain
from shared.scheduling.request import Kind
from shared.text.tokenizer import Tokenizer
from tests.shared.replica.test_replica import make_spec
from tests.shared.text.test_tokenizer import BYTE_FALLBACK

EOS = 2
SPEC = make_spec(max_model_len=14)
some_tokens = st.lists(st.integers(0, 5), max_size=16)
prompts = st.lists(st.integers(0, 5), min_size=1, max_size=9)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 9),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(1, 4), max_size=2).map(tuple),
    includes_stop=st.booleans(),
)


def request_of(prompt: Iterable[int], sampling: SamplingParams, output: Iterable[int] = ()) -> GenerateRequest:
    return GenerateRequest("a", Kind.OFFLINE, list(prompt), sampling, 0.0, "gateway", list(output))


def admit(prompt: Iterable[int], sampling: SamplingParams, output: Iterable[int] = ()) -> LiveSequence:
    return LiveSequence.admit(request_of(prompt, sampling, output), SPEC, None)


def naive(prompt: list[int], sampling: SamplingParams, tokens: list[int]) -> tuple[list[int], FinishReason | None]:
    """What comes of these tokens, one after another."""
    for number, token in enumerate(tokens):
        is_eos = token == EOS and not sampling.ignore_eos
        if token in sampling.stop_token_ids and not is_eos and not sampling.includes_stop:
            return tokens[:number], FinishReason.STOP
        if is_eos or token in sampling.stop_token_ids:
            return tokens[: number + 1], FinishReason.STOP
        if number + 1 >= min(sampling.max_tokens, SPEC.max_model_len - len(prompt)):
            return tokens[: number + 1], FinishReason.LENGTH
    return tokens, None


@settings(max_examples=60)
@given(prompt=prompts, sampling=samplings, tokens=some_tokens, data=st.data())
def test_it_ends_where_its_tokens_say_here_and_where_it_is_resumed(
    prompt: list[int], sampling: SamplingParams, tokens: list[int], data: st.DataObject
) -> None:
    """Wherever it was taken up in between; and one that had ended has nothing left to generate."""
    output, reason = naive(prompt, sampling, tokens)
    num_before = data.draw(st.integers(0, max(0, len(output) - bool(reason))))
    sequence = admit(prompt, sampling, output[:num_before])
    assert sequence.finished_before(SPEC) is None
    ended = None
    for token in tokens[num_before:]:
        ended = sequence.append(token, SPEC)
        assert sequence.request.num_tokens == len(prompt) + sequence.num_output_tokens
        if ended is not None:
            break
    assert (sequence.output_token_ids, ended) == (output, reason)
    assert sequence.unpublished == output[num_before:]
    assert admit(prompt, sampling, output).finished_before(SPEC) is naive(prompt, sampling, output)[1]


def test_a_prompt_to_be_computed_is_left_to_do_whatever_its_last_token() -> None:
    assert admit([5, EOS], SamplingParams(0)).finished_before(SPEC) is None
    assert admit([5, EOS], SamplingParams(3)).finished_before(SPEC) is None
    assert admit([5], SamplingParams(3), [EOS]).finished_before(SPEC) is FinishReason.STOP


@pytest.mark.parametrize("shows_special", [False, True])
def test_the_name_of_a_special_token_stops_where_it_is_shown(tokenizer: Tokenizer, shows_special: bool) -> None:
    name = tokenizer.detokenizer(shows_special=True).push([EOS])
    sampling = SamplingParams(9, ignore_eos=True, stop=(name,), shows_special=shows_special)
    sequence = LiveSequence.admit(request_of([5], sampling), SPEC, tokenizer)
    assert name and sequence.append(EOS, SPEC) is (FinishReason.STOP if shows_special else None)
    resumed = LiveSequence.admit(request_of([5], sampling, [EOS]), SPEC, tokenizer)
    assert resumed.finished_before(SPEC) is (FinishReason.STOP if shows_special else None)
    assert LiveSequence.admit(request_of([5], sampling), SPEC, None).append(EOS, SPEC) is None


def test_the_blank_behind_the_prompt_is_a_part_of_a_stop_string() -> None:
    prompt, (first, *_) = BYTE_FALLBACK.encode("a"), BYTE_FALLBACK.encode("hello")
    sampling = SamplingParams(9, ignore_eos=True, stop=(" h",))
    for asked, reason in ((sampling, None), (sampling.after(prompt), FinishReason.STOP)):
        sequence = LiveSequence.admit(request_of(prompt, asked), SPEC, BYTE_FALLBACK)
        assert sequence.append(first, SPEC) is reason


@settings(max_examples=30)
@given(
    prompt=prompts, output=some_tokens, more=some_tokens, block_size=st.integers(1, 4), adapter=st.sampled_from("ab")
)
def test_its_full_blocks_are_those_of_all_its_tokens(
    prompt: list[int], output: list[int], more: list[int], block_size: int, adapter: str
) -> None:
    """However many there were when it was first asked, and whether or not some were known."""
    sampling = SamplingParams(99, adapter=adapter, ignore_eos=True)
    request = request_of(prompt, sampling, output)
    known = hash_chain(prompt, block_size, parent=sampling.kv_scope.root)
    for sequence in (admit(prompt, sampling, output), LiveSequence.admit(request, SPEC, None, known)):
        for token in [None, *more]:
            if token is not None:
                sequence.append(token, SPEC)
            expected = hash_chain(sequence.token_ids, block_size, parent=sampling.kv_scope.root)
            assert sequence.block_hashes(block_size) == expected


@settings(max_examples=40)
@given(prompt=prompts, block_size=st.integers(1, 4), steps=st.lists(st.integers(1, 4)))
def test_each_token_of_a_prompt_but_the_first_is_scored_once(
    prompt: list[int], block_size: int, steps: list[int]
) -> None:
    """A chunk has the tokens that follow its own scored. Blocks are those with scores, until it moves with these."""
    sequence, start, scored = admit(prompt, SamplingParams(3, prompt_logprobs=0)), 0, list[int]()
    assert sequence.block_hashes(block_size) == prompt_chain(prompt, block_size, sequence.sampling.kv_scope)
    assert sequence.scoring is not None and sequence.prompt_scores == (None if len(prompt) > 1 else b"")
    for num_tokens in [*steps, len(prompt)]:
        end = min(start + num_tokens, len(prompt))
        if start < end:
            scored_now = sequence.scored_ids(start, end)
            sequence.scoring.put(start, bytes(8 * len(scored_now)))
            scored, start = [*scored, *scored_now], end
    assert scored == prompt[1:]
    sequence.append(7, SPEC)
    assert sequence.scored_ids(len(prompt), len(prompt) + 1) == []
    packed = bytes(range(8)) * (len(prompt) - 1)
    moved = admit(prompt, SamplingParams(3, prompt_logprobs=0), [3])
    moved.bring_scores(packed)
    assert moved.prompt_scores == packed and moved.scored_ids(0, len(prompt)) == []
    assert moved.block_hashes(block_size) == hash_chain([*prompt, 3], block_size)


def test_choices_begin_anew_from_the_prompt_each_with_its_seed(tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(3, n=3, seed=11, logprobs=0, ignore_eos=True, stop=("never",))
    sequence = LiveSequence.admit(request_of([5, 6, 7, 8], sampling), SPEC, tokenizer)
    for index in range(3):
        assert sequence.has_more_choices is (index < 2)
        assert sequence.sampling.seed == sampling.seed_of_choice(index)
        assert (sequence.token_ids, sequence.request.num_tokens) == ([5, 6, 7, 8], 4)
        assert sequence.block_hashes(2) == hash_chain([5, 6, 7, 8], 2)
        reasons = [sequence.append(10 * index + token, SPEC, logprobs_of(token)) for token in range(3)]
        assert reasons == [None, None, FinishReason.LENGTH] and len(sequence.block_hashes(2)) == 3
        choice = sequence.choice(FinishReason.LENGTH)
        assert choice.token_ids == [10 * index + token for token in range(3)]
        assert choice.finish_reason is FinishReason.LENGTH
        assert choice.logprobs == [logprobs_of(token) for token in range(3)]
        assert sequence.begin_next_choice(FinishReason.LENGTH, tokenizer) is (index < 2)
        assert len(sequence.ended_choices) == min(index + 1, 2) and sequence.ended_choices[-1].token_ids[0] % 10 == 0
    assert sequence.stop_strings is not None


def logprobs_of(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), [], [])


def test_what_is_asked_of_no_other_choice_is_over_with_the_first() -> None:
    sequence = admit([5], SamplingParams(2))
    assert not sequence.has_more_choices and not sequence.begin_next_choice(FinishReason.LENGTH, None)
    assert sequence.ended_choices == []


@pytest.mark.parametrize("num_logprobs", [None, 0])
@settings(max_examples=40)
@given(gains=st.lists(st.integers(0, 3), max_size=5), num_scored=st.integers(0, 3))
def test_each_token_and_all_scores_are_told_once(num_logprobs: int | None, gains: list[int], num_scored: int) -> None:
    """In as many messages as it gained tokens in, and the last."""
    sampling = SamplingParams(99, logprobs=num_logprobs, prompt_logprobs=0, ignore_eos=True)
    sequence, numbers = admit([5, 6, 7], replace(sampling), [1, 1]), count(10)
    sequence.num_cached_tokens = 2
    assert sequence.scoring is not None
    sequence.scoring.put(0, bytes(8 * min(num_scored, 2)))
    told: list[TokenOutput] = []
    for gain in [*gains, None]:
        if gain is None:
            sequence.embedding = b"embedding"
            told.append(final_output(ended := Ended(sequence, FinishReason.ERROR, "why")))
        else:
            for _ in range(gain):
                number = next(numbers)
                sequence.append(number, SPEC, logprobs_of(number) if num_logprobs is not None else None)
            told.append(token_output(sequence))
        assert told[-1].num_output_tokens == 2 + sum(len(each.token_ids) for each in told)
    assert [token for each in told for token in each.token_ids] == sequence.output_token_ids[2:]
    for each in told:
        expected = None if num_logprobs is None else [logprobs_of(token) for token in each.token_ids]
        assert each.logprobs == expected and (each.request_id, each.num_cached_tokens) == ("a", 2)
    scores = bytes(16) if num_scored >= 2 else None
    assert [each.prompt_scores for each in told] == [scores, *[None] * len(gains)], "with the first message"
    assert [(each.finish_reason, each.error, each.embedding) for each in told] == [
        *[(None, "", None)] * len(gains),
        (FinishReason.ERROR, "why", b"embedding"),
    ]
    told_end = ended_request(ended)
    assert (told_end.request_id, told_end.finish_reason) == ("a", FinishReason.ERROR)
    assert told_end.num_output_tokens == sequence.num_output_tokens == 2 + sum(gains)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_scheduler_knows_of_it_what_it_goes_by(is_resumed: bool) -> None:
    request = request_of(range(4), SamplingParams(6), [1, 2])
    request = replace(request, client_id="client", client_weight=2.0, arrival_s=9.0, is_resumed=is_resumed)
    for max_model_len, most in ((8, 8), (100, 10)):
        made = scheduled(request, max_model_len)
        assert (made.num_tokens, made.max_total_tokens, made.num_computed_tokens) == (6, most, 0)
        assert (made.client_id, made.client_weight, made.arrival_s) == ("client", 2.0, 9.0)
        assert made.num_resumed_tokens == (2 if is_resumed else None)


def test_whoever_asks_for_it_is_known() -> None:
    request = replace(request_of([5], SamplingParams(1)), http_request_id="http", traceparent="trace")
    sequence = LiveSequence.admit(request, SPEC, None)
    assert (sequence.gateway_id, sequence.traceparent) == ("gateway", "trace")
    assert sequence.log_ids == {"request_id": "a", "http_request_id": "http"}


def test_output_of_another_vocabulary_is_trusted_where_that_is_said() -> None:
    beyond = SPEC.vocab_size
    assert "beyond the vocabulary" in admit([5], SamplingParams(3), [beyond]).why_never_run(SPEC)
    assert admit([5], SamplingParams(3), [beyond]).why_never_run(SPEC, trusts_output=True) == ""
    assert admit([beyond - 1], SamplingParams(3)).why_never_run(SPEC) == ""
    for odd in (admit([beyond], SamplingParams(3)), admit([5], SamplingParams(3, stop_token_ids=(beyond,)))):
        assert f"token {beyond} is beyond" in odd.why_never_run(SPEC, trusts_output=True)


@settings(max_examples=60)
@given(num_prompt_tokens=st.integers(1, 6), known=st.integers(0, 3), puts=st.lists(st.integers(1, 3)))
def test_scores_of_a_prompt_are_complete_once_each_token_has_one(
    num_prompt_tokens: int, known: int, puts: list[int]
) -> None:
    """Those that come again are replaced."""
    records = [bytes([number]) * 8 for number in range(num_prompt_tokens - 1)]
    scoring = PromptScoring(0, num_prompt_tokens, b"".join(records[:known]))
    for num_more in [*puts, num_prompt_tokens]:
        num_scored = scoring.num_scored
        assert scoring.is_complete is (num_scored == len(records))
        assert scoring.whole == scoring.untold == (b"".join(records) if scoring.is_complete else None)
        first = max(0, num_scored - 1)
        scoring.put(first, b"".join(records[first : num_scored + num_more]))
        assert scoring.get(0, scoring.num_scored) == b"".join(records[: scoring.num_scored])
        assert scoring.get(first, first + 1) == b"".join(records[first : first + 1])
    assert scoring.take() == b"".join(records) and scoring.take() is None and scoring.untold is None
    assert scoring.whole == b"".join(records)
