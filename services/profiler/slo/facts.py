"""What a record says of the workload that was run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.workload.traces import TraceRequest
from shared.protocol.slo_profile import WorkloadFacts


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
