"""Rate limits: the bucket in made-up time, a key's limits, and what clients of a gateway see of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.access.rate_limits import RateLimits, TokenBucket, duration
from services.gateway.http.errors import Refusal
from services.local.stack.keys import open_keys
from shared.bus.address import BusAddress
from shared.protocol.access.api_keys import KeyTerms
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until


@given(
    per_minute=st.integers(1, 100_000),
    asked=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 200_000), st.integers(0, 200_000)), max_size=40),
)
def test_no_more_than_the_rate_goes_out_in_the_long_run(per_minute: int, asked: list[tuple[float, int, int]]) -> None:
    """Whatever is reserved and then used: what was used is never more than a full bucket and the refill, beyond the
    debt of the last request."""
    bucket, now_s, used = TokenBucket(per_minute, 0.0), 0.0, 0.0
    for gap_s, reserve, use in asked:
        now_s += gap_s
        if bucket.wait_s(reserve, now_s) > 0:
            continue
        assert bucket.level(now_s) >= min(reserve, per_minute)
        assert used <= per_minute + now_s * per_minute / 60 + 1e-6
        reserved = min(reserve, per_minute)
        bucket.take(reserved)
        bucket.take(use - reserved)
        used += use
    assert bucket.level(now_s) <= per_minute


def test_a_bucket_says_when_so_much_is_there() -> None:
    bucket = TokenBucket(60, 100.0)
    bucket.take(60)
    assert bucket.wait_s(1, 100.0) == 1.0 and bucket.wait_s(0, 100.0) == 0.0
    assert bucket.wait_s(10, 105.0) == 5.0 and bucket.wait_s(10, 110.0) == 0.0
    assert bucket.wait_s(1_000, 100.0 + 50) == 10.0  # a full bucket is the most there is to wait for
    bucket.take(-1_000)
    assert bucket.level(150.0) == 60.0


def test_what_was_not_used_is_there_again() -> None:
    limits = RateLimits(None, 1000, 0.0)
    (share,) = limits.reserve_tokens(900, 0.0).shares([0])
    with pytest.raises(Refusal) as refused:
        limits.reserve_tokens(200, 0.0)
    assert (refused.value.status, refused.value.reason, refused.value.type) == (429, "rate_limit_tokens", "tokens")
    assert refused.value.headers["Retry-After"] == "6"
    share.settle(60, 40)
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "900"
    limits.reserve_tokens(900, 0.0)


def test_what_was_used_beyond_the_reservation_is_owed() -> None:
    limits = RateLimits(None, 60, 0.0)
    limits.reserve_tokens(5000, 0.0).shares([0])[0].settle(100, 80)
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(Refusal) as refused:
        limits.reserve_tokens(1, 0.0)
    assert refused.value.headers["Retry-After"] == "121"
    limits.reserve_tokens(1, 121.0)


def test_choices_pay_for_their_prompt_once() -> None:
    limits = RateLimits(None, 1000, 0.0)
    first, *others = limits.reserve_tokens(100 + 3 * 200, 0.0).shares([0, 100, 100])
    first.settle(100, 50)
    for other in others:
        assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "300", "until all have ended"
        other.settle(100, 50)
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "750"


def test_one_choice_that_fails_makes_all_of_them_cost_nothing() -> None:
    limits = RateLimits(None, 1000, 0.0)
    one, failed, other = limits.reserve_tokens(700, 0.0).shares([0, 100, 100])
    one.settle(100, 50)
    failed.fail()
    other.settle(100, 50)
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "1000"


def test_a_key_without_limits_is_never_refused_and_told_nothing() -> None:
    limits = RateLimits(None, None, 0.0)
    for _ in range(1000):
        limits.take_request(0.0)
        limits.reserve_tokens(10**6, 0.0).shares([0])[0].settle(10**6)
    assert limits.headers(0.0) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.0121, "13ms"), (6.5, "7s"), (59.5, "1m0s"), (90, "1m30s"), (3600, "60m0s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "4")
        made.start_gateway("--require-keys", "always", "--api-key", "k" * 32)
        made.wait_ready()
        yield made


async def new_key(rig: GatewayRig, requests_per_minute: int | None, tokens_per_minute: int | None) -> httpx.Client:
    """A client with a key of its own, which the gateway knows."""
    async with open_keys(Path(), BusAddress(rig.nats_url)) as keys:
        name = f"key-{len(await keys.all())}"
        key = await keys.create(
            name, KeyTerms(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
        )
    client = httpx.Client(base_url=rig.url, timeout=60, headers={"Authorization": f"Bearer {key}"})
    wait_until(lambda: client.get("/v1/models").status_code == 200, "a new key is refused")
    return client


def complete(client: httpx.Client, num_prompt: int, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "prompt": [7] * num_prompt, "max_tokens": 3, "ignore_eos": True, "seed": 1} | fields
    return client.post("/v1/completions", json=body)


def remaining(response: httpx.Response, what: str) -> int:
    return int(response.headers[f"x-ratelimit-remaining-{what}"])


async def test_requests_beyond_the_limit_are_told_when_to_come_back(rig: GatewayRig) -> None:
    with closing(await new_key(rig, 3, None)) as client, closing(await new_key(rig, 3, None)) as other:
        answers = [complete(client, 5) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [remaining(answer, "requests") for answer in answers] == [2, 1, 0]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
        assert "x-ratelimit-limit-tokens" not in answers[0].headers
        refusals = rig.metric("slackwater_refused_requests_total", reason="rate_limit_requests")
        for refused in (complete(client, 5), client.post("/v1/batches", json={}), client.post("/v1/files")):
            assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 20
            error = refused.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
        assert rig.metric("slackwater_refused_requests_total", reason="rate_limit_requests") == refusals + 3
        assert client.get("/v1/batches").status_code == 200
        assert complete(other, 5).status_code == 200


async def test_the_official_client_raises_its_rate_limit_error(rig: GatewayRig) -> None:
    with closing(await new_key(rig, 1, None)) as client:
        key = client.headers["Authorization"].removeprefix("Bearer ")
        official = openai.OpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0)
        official.completions.create(model=MODEL, prompt="x", max_tokens=1)
        with pytest.raises(openai.RateLimitError) as caught:
            official.completions.create(model=MODEL, prompt="x", max_tokens=1)
        assert caught.value.code == "rate_limit_exceeded"
        official.close()


async def test_tokens_are_reserved_while_a_request_runs_and_corrected_at_its_end(rig: GatewayRig) -> None:
    minute = 600  # 10 a second come back
    with closing(await new_key(rig, None, minute)) as client:
        first = complete(client, 50, max_tokens=7)
        assert remaining(first, "tokens") >= minute - 57
        long = {"model": MODEL, "prompt": [7] * 50, "max_tokens": 450, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=long) as stream:
            assert stream.status_code == 200 and remaining(stream, "tokens") <= minute - 500
            refused = complete(client, 300)
            assert refused.status_code == 429 and refused.json()["error"]["type"] == "tokens"
            assert remaining(refused, "tokens") < 303 and 1 <= int(refused.headers["retry-after"]) <= 30
        wait_until(lambda: rig.metric("slackwater_live_requests") == 0, "the stream goes on")
        assert complete(client, 300).status_code == 200


async def test_invalid_requests_cost_no_tokens(rig: GatewayRig) -> None:
    with closing(await new_key(rig, None, 1000)) as client:
        assert complete(client, 9000).status_code == 400
        assert remaining(complete(client, 10), "tokens") >= 1000 - 20
