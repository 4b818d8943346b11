"""What online users got, as gateways tell it."""

from __future__ import annotations

import msgspec

from shared.latency.histogram import LatencyHistogram


class FinishedOnline(msgspec.Struct, frozen=True, array_like=True):
    """An online request that left its executor, as a workload remembers it."""

    arrival_s: float  # unix time, at the gateway
    num_prompt_tokens: int
    num_output_tokens: int


class OnlineServed(msgspec.Struct):
    """What online users of one gateway got from one executor since its message before; sent at most once a second,
    and only where there is something to tell. Those who count hold one and add to it.

    The latencies are those of a replay's report, with arrival at the gateway as the beginning: TTFT ends at the first
    tokens, TBT is the gap between two arrivals of tokens of one request, TPOT is a request's time from first to last
    token over its tokens but one, normalized latency its whole time over its tokens.
    """

    executor_id: str
    gateway_id: str
    unix_s: float = 0.0
    oldest_open_s: float | None = None  # arrival of the oldest request that it still serves
    num_started: int = 0
    finished: list[FinishedOnline] = []
    ttft_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tbt_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tpot_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    normalized_latency_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
