"""Fits a trace to the machine: window, rate, time and lengths, as HyGen and OOCO scale theirs."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from loadgen.errors import WorkloadError
from loadgen.workload.traces import TraceRequest
from shared.bounds import MOST

REPLICA_BLOCK_IDS = 1 << 40  # above any trace's own block ids
MOST_REQUESTS = 10_000_000  # 2 GB of them
MOST_SILENCE = 0.1  # of a window, at its end: a trace that has ended for longer is told of


@dataclass(slots=True)
class TraceReading:
    """A trace, and how far it was read: ``last_s`` is when the last request arrives that was."""

    trace: Iterable[TraceRequest]
    last_s: float = 0.0

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self.trace:
            self.last_s = request.arrival_s
            yield request


@dataclass(frozen=True, slots=True)
class Scaling:
    """How to cut and scale a trace; ``duration_s`` of a replay are ``duration_s * time_scale`` of the trace."""

    start_s: float = 0.0
    duration_s: float = 60.0
    qps: float | None = None
    rate_scale: float | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.qps is not None and self.rate_scale is not None:
            raise WorkloadError("--qps and --rate-scale both set the rate: give one of them")
        positive = {
            "--duration": self.duration_s,
            "--qps": self.qps,
            "--rate-scale": self.rate_scale,
            "--time-scale": self.time_scale,
            "--length-scale": self.length_scale,
        }
        for name, value in positive.items():
            if value is not None and not 0 < value <= MOST:
                raise WorkloadError(f"{name} must be above 0 and no more than {MOST:g}, not {value:g}")
        if not 0 <= self.start_s < math.inf:
            raise WorkloadError(f"--start must not be negative, not {self.start_s:g}")

    def apply(self, trace: Iterable[TraceRequest]) -> list[TraceRequest]:
        """The requests to send, ``arrival_s`` in seconds of the replay. Raises WorkloadError where there is none."""
        length_s = self.duration_s * self.time_scale
        requests = window(trace, self.start_s, length_s)
        if not requests:
            raise WorkloadError(f"the trace has no request in the {length_s:g} s from {self.start_s:g} s on")
        requests = [replace(request, arrival_s=request.arrival_s / self.time_scale) for request in requests]
        rng = random.Random(f"{self.seed}:rate")
        if self.qps is not None:  # T * Q at random (HyGen, section 5.1); beyond the trace's own rate, replicated
            requests = scale_rate(requests, _bounded(self.duration_s * self.qps), self.duration_s, rng)
        elif self.rate_scale is not None:
            requests = scale_rate(requests, _bounded(len(requests) * self.rate_scale), self.duration_s, rng)
        return [self._scale_lengths(request) for request in requests]

    def notes(self, last_s: float) -> list[str]:
        """Of a trace that was read up to a request that arrives at ``last_s``: where the window goes on for long when
        there are no more."""
        ends_s = (last_s - self.start_s) / self.time_scale
        if ends_s >= (1 - MOST_SILENCE) * self.duration_s:
            return []
        note = f"the trace ends {ends_s:.3g} s into the window of {self.duration_s:g} s, which rates are over"
        crowded = "" if self.qps is None else f": next to all that --qps {self.qps:g} asks for comes before that"
        return [note + crowded]

    def _scale_lengths(self, request: TraceRequest) -> TraceRequest:
        prompt, output = scale_lengths(request.num_prompt_tokens, request.num_output_tokens, self.length_scale)
        block_tokens = max(1, round(request.block_tokens * self.length_scale))
        return replace(request, num_prompt_tokens=prompt, num_output_tokens=output, block_tokens=block_tokens)


def window(trace: Iterable[TraceRequest], start_s: float, duration_s: float) -> list[TraceRequest]:
    """Requests that arrive in [start, start + duration), times counted from the start. The rest is not read."""
    read = takewhile(lambda request: request.arrival_s < start_s + duration_s, trace)
    return [replace(each, arrival_s=each.arrival_s - start_s) for each in read if each.arrival_s >= start_s]


def scale_rate(
    requests: Sequence[TraceRequest], wanted: int, duration_s: float, rng: random.Random
) -> list[TraceRequest]:
    """Drop at random, or replicate lengths with times interpolated between neighbours (OOCO, section 5.1.3). A spike
    keeps its length and the ratio of peak to trough stays. Returns ``wanted`` requests, at least one."""
    copies, rest = divmod(max(1, wanted), len(requests))
    ends_s = [after.arrival_s for _, after in pairwise(requests)] + [duration_s]
    scaled: list[TraceRequest] = []
    for copy in range(copies):
        scaled += [_replica(request, end_s, copy, rng) for request, end_s in zip(requests, ends_s, strict=True)]
    chosen = sorted(rng.sample(range(len(requests)), rest))
    scaled += [_replica(requests[i], ends_s[i], copies, rng) for i in chosen]
    return sorted(scaled, key=lambda request: request.arrival_s)


def scale_lengths(prompt_tokens: int, output_tokens: int, length_scale: float) -> tuple[int, int]:
    """Both lengths times the scale, at least one token each."""
    return max(1, round(prompt_tokens * length_scale)), max(1, round(output_tokens * length_scale))


def fit_context(prompt_tokens: int, output_tokens: int, max_context: int | None) -> tuple[int, int]:
    """Lengths cut so that prompt and output fit the context: the output to half of it, then the prompt to the rest."""
    if max_context is None or prompt_tokens + output_tokens <= max_context:
        return prompt_tokens, output_tokens
    output_tokens = min(output_tokens, max(1, max_context // 2))
    return min(prompt_tokens, max_context - output_tokens), output_tokens


def cap_context(requests: Sequence[TraceRequest], max_context: int | None) -> list[TraceRequest]:
    """The requests, with lengths cut to the context where they do not fit it."""
    capped = []
    for request in requests:
        prompt, output = fit_context(request.num_prompt_tokens, request.num_output_tokens, max_context)
        capped.append(replace(request, num_prompt_tokens=prompt, num_output_tokens=output))
    return capped


def _bounded(wanted: float) -> int:
    """So many requests. Raises WorkloadError for more than memory is for."""
    if wanted > MOST_REQUESTS:
        raise WorkloadError(f"the rate asks for {wanted:g} requests: {MOST_REQUESTS:g} are the most")
    return round(wanted)


def _replica(request: TraceRequest, end_s: float, copy: int, rng: random.Random) -> TraceRequest:
    """Copy 0 is the request itself; the others arrive at a random time before the next request, with block ids of their
    own, so that replication keeps the trace's prefix sharing instead of making every replica a full hit."""
    if copy == 0:
        return request
    block_ids = tuple(block_id + copy * REPLICA_BLOCK_IDS for block_id in request.block_ids)
    return replace(request, arrival_s=rng.uniform(request.arrival_s, end_s), block_ids=block_ids)
