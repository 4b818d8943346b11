"""What messages and records can be made of: values that nobody should send, and bytes that are no message."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.latency.histogram import LatencyHistogram
from shared.protocol.codec import decode, decode_record, encode, encode_record
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import StepPlan
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from tests.fuzzing.messages import Maker, message_types, mutate, spoil

SEEDS = st.integers(0, 2**32)
REQUEST = GenerateRequest("r", Kind.ONLINE, [1], SamplingParams(1), 0.0)


@pytest.mark.parametrize("message_type", message_types(), ids=lambda each: each.__name__)
@settings(max_examples=10)
@given(seed=SEEDS, hostility=st.sampled_from((0.0, 0.2, 1.0)))
def test_whatever_comes_is_a_message_or_a_decode_error(
    message_type: type[msgspec.Struct], seed: int, hostility: float
) -> None:
    """What does parse can be sent on as it is."""
    random = Random(seed)
    made = Maker(random, {}, hostility).value(message_type)
    for data in (encode(made), encode(mutate(made, random)), spoil(encode(made), random)):
        try:
            message = decode(data, message_type)
        except msgspec.DecodeError:
            continue
        assert encode(decode(encode(message), message_type)) == encode(message)
        encode_record(message)


@pytest.mark.parametrize("data", [b"\x81\xa4type\xa1\xff", b"\x91" * 5000, b"\xc1", b""])
def test_bytes_that_are_no_message_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data, GenerateRequest)


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b'"\xff"', b"[" * 100_000, b"\xff", b""])
def test_bytes_that_are_no_record_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(data, dict)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_token_ids": [-1]},
        {"prompt_token_ids": [2**32]},
        {"arrival_s": float("nan")},
        {"client_weight": 0.0},
        {"gateway_id": "*"},
        {"request_id": "a b"},
        {"request_id": "a\n"},
        {"sampling": {"max_tokens": 1, "bad_words": [[5], []]}},
    ],
)
def test_a_request_that_nobody_can_run_does_not_parse(wrong: dict[str, object]) -> None:
    whole = msgspec.to_builtins(REQUEST)
    assert decode(encode(whole), GenerateRequest) == REQUEST
    with pytest.raises(msgspec.ValidationError):
        decode(encode(whole | wrong), GenerateRequest)


def test_a_request_has_one_entry_in_a_plan() -> None:
    entries = [ScheduledRequest(request_id, Kind.OFFLINE, 1) for request_id in ("a", "b")]
    plan = StepPlan("executor-0", "epoch", 0, entries, [], [], 0.0)
    assert decode(encode(plan), StepPlan) == plan
    whole = msgspec.to_builtins(plan)
    with pytest.raises(msgspec.ValidationError, match="one entry"):
        decode(encode(whole | {"entries": [*whole["entries"], whole["entries"][0]]}), StepPlan)


@pytest.mark.parametrize("buckets", [{}, {0: 1}, {3: 3}, {10**6: 2}])
def test_a_histogram_has_the_samples_that_it_says(buckets: dict[int, int]) -> None:
    assert decode(encode([2, 1.0, {3: 2}]), LatencyHistogram).quantile_ms(0.99)
    with pytest.raises(msgspec.ValidationError):
        decode(encode([2, 1.0, buckets]), LatencyHistogram)


def test_hashes_of_blocks_are_whole() -> None:
    with pytest.raises(msgspec.ValidationError, match="16 bytes each"):
        decode(encode([b"x" * 17]), BlockChanges)


def test_a_whole_cache_may_have_no_blocks() -> None:
    mirror = PrefixCacheMirror()
    assert mirror.apply(CacheChanges(3, is_whole=True)) and not len(mirror)


def test_cache_changes_of_fewer_kinds_than_before_are_a_gap() -> None:
    mirror, both = PrefixCacheMirror(), (BlockChanges(), BlockChanges())
    assert mirror.apply(CacheChanges(1, is_whole=True, blocks=both))
    assert not mirror.apply(CacheChanges(2, blocks=(BlockChanges(),)))
    assert mirror.is_stale
    assert mirror.apply(CacheChanges(2, is_whole=True, blocks=both))
