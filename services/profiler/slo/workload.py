"""The online workload of an executor as it was served, to be run again, and what has changed since it was."""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from loadgen.workload.traces import TraceRequest
from shared.latency.features import BatchFeatures
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.protocol.profiling.online import FinishedOnline, OnlineServed
from shared.protocol.profiling.slo_profile import ExecutorFacts, WorkloadFacts

RECORDED = "recorded"
SPAN_S = 600.0
CAPACITY = 5000  # requests of a workload: a search runs it a dozen times
MOST_KEPT = 10 * CAPACITY  # that have ended, since a workload ends before the oldest request that is still open
LONGEST_OPEN_S = 60.0  # a request that is open for longer does not hold the end of the recording back
MODEL_TOLERANCE = 0.05  # share by which models may differ on typical batches
KV_TOLERANCE = 0.1  # and KV caches, which are as large as the memory that is free when an engine is loaded
KV_TOKENS = "kv_tokens"
MOVES = ("strict", "relaxed")
DECODES = (1, 4, 16, 64)  # of those batches


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests by arrival, in seconds since the beginning. What prompts shared is not recorded: they are taken to share
    nothing, which is the more work. ``is_full``: it is as long as it gets at this rate."""

    requests: Sequence[TraceRequest]
    duration_s: float
    is_full: bool = False

    def facts(self, offline: str = "", offline_lengths: Sequence[tuple[int, int]] = ()) -> WorkloadFacts:
        """As a profile tells them; ``offline``: what it was beside, and the prompt and output tokens of that."""
        facts = workload_facts(RECORDED, self.requests, self.duration_s, offline, offline_lengths)
        return msgspec.structs.replace(facts, burstiness=_burstiness(self.requests))


@dataclass(frozen=True, slots=True)
class Pools:
    """Executors that share a workload, ``num_strict`` of them strict and the others for prompts. One alone has its own:
    then nothing moves. ``handover_ms``: for which a request that moves has no step."""

    num_executors: int = 1
    num_strict: int = 0
    handover_ms: float = 0.0


ALL_MIXED = Pools()


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


def model_drift(
    model: LatencyModelRecord, before: LatencyModelRecord | None, workload: WorkloadFacts, info: ExecutorInfo
) -> str:
    """By how much it differs where it differs most, beyond 5%, or that the machine has left the model before; empty
    where neither is so. A model that is not known any more counts as different."""
    if before is None:
        return "the model of the profile is not known any more"
    if model.drifts > before.drifts:
        ratio = "" if model.drift_ratio is None else f" by {model.drift_ratio:.3g}"
        return f"measured times have left the model{ratio}"
    new, old = model.latency_model(), before.latency_model()
    pairs = [(new.predict_ms(batch), old.predict_ms(batch)) for batch in typical_batches(workload, info)]
    new_ms, old_ms = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / max(*pair, 1e-9))
    if abs(new_ms - old_ms) <= MODEL_TOLERANCE * max(new_ms, old_ms):
        return ""
    return f"a batch is predicted at {new_ms:.4g} ms instead of {old_ms:.4g} ms"


def executor_facts(info: ExecutorInfo, pools: Pools = ALL_MIXED) -> ExecutorFacts:
    """What a budget depends on beside the model and the workload: the strategy, as far as it is not the preset's, the
    limits, and the executors that requests move between."""
    strategy, spec = info.strategy, info.spec
    limits = {"max_num_batched_tokens": info.max_num_batched_tokens, "max_num_seqs": info.max_num_seqs}
    sizes = {"max_model_len": spec.max_model_len, "block_size": spec.block_size, KV_TOKENS: info.num_kv_tokens}
    counts = pools.num_strict, pools.num_executors - pools.num_strict
    moves = dict(zip(MOVES, counts, strict=True)) if pools.num_strict else {}
    return {"preset": strategy.preset} | strategy.changes() | limits | sizes | moves


def executor_drift(now: ExecutorFacts, then: ExecutorFacts) -> str:
    """What of the executor is another; empty where nothing is, or what it was is not known."""

    def is_same(name: str) -> bool:
        new, old = now.get(name), then.get(name)
        if name == KV_TOKENS and isinstance(new, int) and isinstance(old, int):
            return abs(new - old) <= KV_TOLERANCE * max(new, old)
        return new == old

    changed = [name for name in now | then if not is_same(name)] if then else []
    return ", ".join(f"{name} {_given(now, name)} instead of {_given(then, name)}" for name in changed)


def _given(facts: ExecutorFacts, name: str) -> str:
    return str(facts.get(name, "none" if name in MOVES else "the preset's"))


def typical_batches(workload: WorkloadFacts, info: ExecutorInfo) -> Iterator[BatchFeatures]:
    """Decodes at the mean context, alone and beside a mean prompt's first chunk; and a full chunk."""
    context_len = max(2, round(workload.input_tokens_mean + workload.output_tokens_mean / 2))
    chunk = max(2, min(round(workload.input_tokens_mean), info.max_num_batched_tokens))
    for num_decodes in DECODES:
        if num_decodes >= info.max_num_seqs:
            break
        batch = BatchFeatures()
        for _ in range(num_decodes):
            batch.add_decode(context_len)
        yield copy(batch)
        batch.add_scheduled(chunk, 0)
        yield batch
    full = BatchFeatures()
    full.add_scheduled(info.max_num_batched_tokens, 0)
    yield full


class WorkloadRecorder:
    """The newest ``capacity`` requests that arrived at one executor in the last ``span_s`` seconds, in unix time, and
    are older than any that is open."""

    def __init__(self, start_s: float, span_s: float = SPAN_S, capacity: int = CAPACITY) -> None:
        self._start_s = start_s  # what arrived before is not known whole
        self._span_s = span_s
        self._capacity = capacity
        self._finished: deque[FinishedOnline] = deque(maxlen=max(capacity, MOST_KEPT))
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
        """See ``recorded``."""
        return recorded([self], now_s, self._capacity)

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """The arrivals, [start, end), that it knows whole."""
        end_s = max(min(self._open.values(), default=now_s), now_s - LONGEST_OPEN_S)
        return max(self._start_s, now_s - self._span_s), end_s

    def arrived(self, start_s: float, end_s: float) -> Iterator[FinishedOnline]:
        """In [start, end)."""
        return (each for each in self._finished if start_s <= each.arrival_s < end_s)


def recorded(recorders: Sequence[WorkloadRecorder], now_s: float, capacity: int = CAPACITY) -> Workload | None:
    """What all of them had together, from the first arrival to the last before that of the oldest request still open,
    so that it holds long answers as well as short ones. None where it holds less than two requests."""
    bounds = [each.bounds_s(now_s) for each in recorders]
    start_s, end_s = max(start for start, _ in bounds), min(end for _, end in bounds)
    arrived = sorted(
        (each for recorder in recorders for each in recorder.arrived(start_s, end_s)), key=lambda each: each.arrival_s
    )
    if len(arrived) < 2:
        return None
    is_full = len(arrived) >= capacity
    arrived = arrived[-capacity:]
    first_s = arrived[0].arrival_s
    requests = [
        TraceRequest(each.arrival_s - first_s, each.num_prompt_tokens, max(1, each.num_output_tokens))
        for each in arrived
    ]
    return Workload(requests, end_s - first_s, is_full)


def _burstiness(requests: Sequence[TraceRequest]) -> float:
    """Standard deviation of the times between arrivals over their mean: 1 for a Poisson process, 0 where unknown."""
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
    online, beside = (Path(source).name, len(requests), duration_s), Path(offline).name
    return WorkloadFacts(*online, *_means(lengths), beside, *_means(offline_lengths))


def _means(lengths: Sequence[tuple[int, int]]) -> tuple[float, float]:
    count = max(1, len(lengths))
    return sum(prompt for prompt, _ in lengths) / count, sum(output for _, output in lengths) / count
