"""The online workload of an executor as it was served, to be run again."""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from loadgen.workload.traces import TraceRequest
from shared.protocol.online import FinishedOnline, OnlineServed
from shared.protocol.slo_profile import WorkloadFacts

RECORDED = "recorded"
SPAN_S = 600.0
CAPACITY = 5000
LONGEST_OPEN_S = 60.0  # a request that is open for longer does not hold the end of the recording back


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests by arrival, in seconds since the beginning. What prompts shared is not recorded: they are taken to share
    nothing, which is the more work."""

    requests: Sequence[TraceRequest]
    duration_s: float

    def facts(self, offline: str = "", offline_lengths: Sequence[tuple[int, int]] = ()) -> WorkloadFacts:
        """As a profile tells them; ``offline``: what it was beside, and the prompt and output tokens of that."""
        facts = workload_facts(RECORDED, self.requests, self.duration_s, offline, offline_lengths)
        return msgspec.structs.replace(facts, burstiness=_burstiness(self.requests))


def drift(now: WorkloadFacts, then: WorkloadFacts, tolerance: float) -> str:
    """What of the workload differs by more than this share of what it was, and twice the deviation that chance makes
    of so few requests; empty where nothing does."""
    tolerance += 2 / math.sqrt(min(now.requests, then.requests))
    pairs = {
        "requests/s": (now.requests / now.duration_s, then.requests / then.duration_s),
        "prompt tokens": (now.input_tokens_mean, then.input_tokens_mean),
        "output tokens": (now.output_tokens_mean, then.output_tokens_mean),
        "burstiness": (now.burstiness, then.burstiness),
    }
    return ", ".join(
        f"{name} {new:.3g} instead of {old:.3g}"
        for name, (new, old) in pairs.items()
        if old > 0 and abs(new - old) > tolerance * old
    )


class WorkloadRecorder:
    """The requests that arrived at one executor within the last ``span_s`` seconds, the newest ``capacity`` of them.

    Times are unix seconds, as the gateways tell them.
    """

    def __init__(self, start_s: float, span_s: float = SPAN_S, capacity: int = CAPACITY) -> None:
        self._start_s = start_s  # what arrived before is not known whole
        self._span_s = span_s
        self._finished: deque[FinishedOnline] = deque(maxlen=capacity)
        self._open: dict[str, float] = {}  # gateway -> arrival of its oldest open request

    def add(self, served: OnlineServed) -> None:
        """A gateway's report."""
        for finished in served.finished:
            if len(self._finished) == self._finished.maxlen:
                self._start_s = max(self._start_s, self._finished[0].arrival_s)
            self._finished.append(finished)
        if served.oldest_open_s is None:
            self._open.pop(served.gateway_id, None)
        else:
            self._open[served.gateway_id] = served.oldest_open_s

    def workload(self, now_s: float) -> Workload | None:
        """From the first arrival to the last before that of the oldest request still open, so that it holds long
        answers as well as short ones. None where it holds less than two requests."""
        end_s = max(min(self._open.values(), default=now_s), now_s - LONGEST_OPEN_S)
        start_s = max(self._start_s, now_s - self._span_s)
        arrived = sorted(
            (each for each in self._finished if start_s <= each.arrival_s < end_s), key=lambda each: each.arrival_s
        )
        if len(arrived) < 2:
            return None
        first_s = arrived[0].arrival_s
        requests = [
            TraceRequest(each.arrival_s - first_s, each.num_prompt_tokens, max(1, each.num_output_tokens))
            for each in arrived
        ]
        return Workload(requests, end_s - first_s)


def _burstiness(requests: Sequence[TraceRequest]) -> float:
    """Standard deviation of the times between arrivals over their mean: 1 for a Poisson process, more for bursts, 0
    where it is not known."""
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]
    mean = statistics.fmean(gaps) if gaps else 0.0
    return statistics.pstdev(gaps) / mean if mean > 0 else 0.0


def workload_facts(
    source: str,
    requests: Sequence[TraceRequest],
    duration_s: float,
    offline: str = "",
    offline_lengths: Sequence[tuple[int, int]] = (),
) -> WorkloadFacts:
    """``source``, ``offline``: where the requests came from, the last part of a path; ``offline_lengths``: prompt and
    output tokens of each offline request, as far as known."""
    lengths = [(request.num_prompt_tokens, request.num_output_tokens) for request in requests]
    input_mean, output_mean = _means(lengths)
    offline_input_mean, offline_output_mean = _means(offline_lengths)
    return WorkloadFacts(
        source=Path(source).name,
        requests=len(requests),
        duration_s=duration_s,
        input_tokens_mean=input_mean,
        output_tokens_mean=output_mean,
        offline=Path(offline).name,
        offline_input_tokens_mean=offline_input_mean,
        offline_output_tokens_mean=offline_output_mean,
    )


def _means(lengths: Sequence[tuple[int, int]]) -> tuple[float, float]:
    count = max(1, len(lengths))
    return sum(prompt for prompt, _ in lengths) / count, sum(output for _, output in lengths) / count
