"""What is measured of live requests: latencies and tokens."""

from opentelemetry.metrics import Meter

from shared.protocol.sampling import FinishReason

TTFT_BUCKETS_S = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
TBT_BUCKETS_S = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5]


class GenerationMetrics:
    """Of the requests of one kind, as tokens arrive from the bus; ``kind``: a part of the names, empty for online."""

    def __init__(self, meter: Meter, kind: str = "") -> None:
        prefix = f"slackwater.{kind}." if kind else "slackwater."
        self.prompt_tokens = meter.create_counter(f"{prefix}prompt.tokens", description="of requests that were sent")
        self._cached_tokens = meter.create_counter(f"{prefix}cached.tokens", description="of their prompts")
        self._output_tokens = meter.create_counter(f"{prefix}output.tokens", description="as they arrive")
        self._finished = meter.create_counter(f"{prefix}finished.requests", description="by finish reason")
        self.resumed = meter.create_counter(f"{prefix}resumed.requests", description="went on after a loss")
        self._ttft = meter.create_histogram(
            f"{prefix}ttft", "s", "request to first token", explicit_bucket_boundaries_advisory=TTFT_BUCKETS_S
        )
        self._tbt = meter.create_histogram(
            f"{prefix}tbt", "s", "between tokens of a request", explicit_bucket_boundaries_advisory=TBT_BUCKETS_S
        )

    def tokens(self, started_s: float, last_token_s: float | None, now_s: float, num_tokens: int) -> None:
        """One step's tokens of one request; the first have a TTFT, the later ones a TBT."""
        self._output_tokens.add(num_tokens)
        if last_token_s is None:
            self._ttft.record(now_s - started_s)
        else:
            self._tbt.record((now_s - last_token_s) / num_tokens)

    def finished(self, finish_reason: FinishReason, num_cached_tokens: int) -> None:
        self._finished.add(1, {"reason": finish_reason.value})
        self._cached_tokens.add(num_cached_tokens)
