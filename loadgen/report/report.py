"""The one report of every command that measures serving. Field names are its JSON keys."""

from __future__ import annotations

import msgspec


class Summary(msgspec.Struct, frozen=True):
    """A metric over all its samples. Percentiles interpolate linearly between samples, as numpy's do."""

    mean: float
    p50: float
    p90: float
    p99: float


class OnlineReport(msgspec.Struct, frozen=True):
    """Online latencies in milliseconds over the requests answered whole; None where there is no sample.

    All count from the time at which the trace wanted the request sent. TTFT ends at the first event with text; TBT is
    the gap between two such events of one request, all gaps of all requests pooled; TPOT is a request's time from
    first to last token over its tokens but one; normalized latency is its whole time over its tokens.
    """

    requests: int  # sent
    completed: int
    errors: int
    unfinished: int  # cut off by an interrupt
    ttft_ms: Summary | None
    tbt_ms: Summary | None
    tpot_ms: Summary | None
    normalized_latency_ms: Summary | None
    send_lag_ms: Summary | None  # sent later than wanted
    requests_per_s: float
    input_tokens_per_s: float | None
    output_tokens_per_s: float
    under_way_share: float | None = None  # of the window, in which at least one request was sent and not yet answered
    overload: float | None = None  # came so many times what was computed in the window; None: it was not too much


class OfflineReport(msgspec.Struct, frozen=True):
    """Offline work within the window. Token rates are None where the server does not tell token counts."""

    mode: str  # "batch" or "requests"
    backlog: int
    completed: int
    errors: int
    elapsed_s: float  # the window, or until the backlog ran out
    exhausted: bool
    requests_per_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None  # prompt and output

    @classmethod
    def counted(
        cls,
        *,
        mode: str,
        backlog: int,
        completed: int,
        errors: int,
        input_tokens: int | None,
        output_tokens: int | None,
        elapsed_s: float,
        exhausted: bool,
    ) -> OfflineReport:
        """With rates; zero where no time has passed. ``exhausted``: the backlog ran out before the window did."""

        def per_s(count: int) -> float:
            return count / elapsed_s if elapsed_s > 0 else 0.0

        output = None if output_tokens is None else per_s(output_tokens)
        total = None if input_tokens is None or output_tokens is None else per_s(input_tokens + output_tokens)
        return cls(mode, backlog, completed, errors, elapsed_s, exhausted, per_s(completed), output, total)


class Ratios(msgspec.Struct, frozen=True):
    """A summary over the baseline's; None where the baseline's figure is 0 or missing."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Interference(msgspec.Struct, frozen=True):
    """Each online latency over the same of the online-only run: 1.0 is no interference."""

    ttft_ms: Ratios
    tbt_ms: Ratios
    tpot_ms: Ratios
    normalized_latency_ms: Ratios


class Baseline(msgspec.Struct, frozen=True):
    """The online-only and the offline-only run, and the share of the former in which the executors idled."""

    online: OnlineReport | None
    offline: OfflineReport | None
    idle_share: float | None


class SloReport(msgspec.Struct, frozen=True):
    """One SLO. ``bound`` and ``value`` are in milliseconds. ``attainment`` is the share of requests (for TBT, of
    gaps) within the bound. In both a failed request is infinitely late, and has as many samples as the others have in
    the mean; a ``value`` that is infinite for it is null in JSON."""

    expr: str
    bound: float | None
    value: float | None
    met: bool
    attainment: float | None


class RunFacts(msgspec.Struct, frozen=True):
    """What was run, so that it can be run again."""

    date: str  # ISO 8601, UTC
    url: str
    model: str
    trace: str | None
    prompts: str | None
    start_s: float
    duration_s: float
    qps: float | None
    rate_scale: float | None
    time_scale: float
    length_scale: float
    max_context: int | None
    seed: int
    prompt_form: str  # "token ids", "text" or "chat"
    exact_output: bool  # the server took ignore_eos


class Report(msgspec.Struct, frozen=True):
    """One run. What was not measured is None."""

    run: RunFacts
    online: OnlineReport | None
    offline: OfflineReport | None
    baseline: Baseline | None
    interference: Interference | None
    harvest: float | None
    slo: list[SloReport]
    partial: bool  # stopped by a signal, or by an error
    notes: list[str]
