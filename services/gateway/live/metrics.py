"""What is measured of live requests: latencies and tokens, in series of our own and in vLLM's."""

from opentelemetry.metrics import Meter

from services.gateway.http.tally import KeyTally
from services.gateway.live.generation import Generation
from services.gateway.live.vllm_requests import VllmRequests
from services.gateway.metrics.series import Series, Type, own
from shared.protocol.sampling import ENDS_WELL, FinishReason

TTFT_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1800.0, 7200.0),  # a flex request waits for as long as online ones leave no time
)
TBT_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5),
    *(5.0, 10.0, 30.0, 120.0, 600.0, 7200.0),  # a long step on a CPU, a loss, a flex request that gave way
)
E2E_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0)

KINDS = ("", "flex")  # a part of the names; empty: online


def generation_series(kind: str) -> dict[str, Series]:
    """Of the requests of one of KINDS, by what they are here."""
    prefix, whose = (f"{kind}.", f"{kind} requests") if kind else ("", "online requests")

    def counter(name: str, meaning: str, *labels: str) -> Series:
        return own(prefix + name, Type.COUNTER, meaning, labels=labels)

    def histogram(name: str, meaning: str, bounds: tuple[float, ...]) -> Series:
        return own(prefix + name, Type.HISTOGRAM, meaning, "s", buckets=bounds)

    return {
        "prompt_tokens": counter("prompt.tokens", f"prompts of {whose} that were sent"),
        "cached_tokens": counter("cached.tokens", "of these, those that the prefix cache had"),
        "output_tokens": counter("output.tokens", f"generated tokens of {whose}, as they arrive"),
        "finished": counter("finished.requests", f"{whose} that ended, by finish reason", "reason"),
        "resumed": counter("resumed.requests", f"{whose} that went on after a loss"),
        "ttft": histogram("ttft", f"{whose}: arrival to first token", TTFT_BUCKETS_S),
        "tbt": histogram("tbt", f"{whose}: between tokens of a request", TBT_BUCKETS_S),
        "e2e": histogram("e2e", f"{whose} that were answered whole: arrival to last token", E2E_BUCKETS_S),
    }


class GenerationMetrics:
    """Of the requests of one of KINDS, as tokens arrive from the bus. ``vllm`` and ``keys`` are those of all kinds."""

    def __init__(self, meter: Meter, vllm: VllmRequests, keys: KeyTally, kind: str = "") -> None:
        series = generation_series(kind)
        self.prompt_tokens = series["prompt_tokens"].counter(meter)
        self.resumed = series["resumed"].counter(meter)
        self._cached_tokens = series["cached_tokens"].counter(meter)
        self._output_tokens = series["output_tokens"].counter(meter)
        self._finished = series["finished"].counter(meter)
        self._ttft, self._tbt, self._e2e = (series[name].histogram(meter) for name in ("ttft", "tbt", "e2e"))
        self._vllm = vllm
        self._keys = keys

    def tokens(self, generation: Generation, now_s: float, num_tokens: int) -> None:
        """One step's tokens of one request, whose ``last_token_s`` is still that of the ones before; the first have a
        TTFT, the later ones a TBT."""
        self._output_tokens.add(num_tokens)
        if generation.last_token_s is None:
            self._ttft.record(now_s - generation.started_s)
        else:
            self._tbt.record((now_s - generation.last_token_s) / num_tokens)
        self._vllm.tokens(generation, now_s, num_tokens)

    def finished(self, generation: Generation, finish_reason: FinishReason) -> None:
        """It has had all of its tokens. It is not timed where it was not answered whole. An embedding ends with its
        prompt: it is told of as vLLM does, and not as what is cut at its limit of tokens."""
        if generation.request.sampling.embedding is not None and finish_reason is FinishReason.LENGTH:
            finish_reason = FinishReason.STOP
        self._finished.add(1, {"reason": finish_reason.value})
        self._cached_tokens.add(generation.num_cached_tokens)
        if finish_reason in ENDS_WELL and generation.last_token_s is not None:
            self._e2e.record(generation.last_token_s - generation.started_s)
        self._vllm.finished(generation, finish_reason)
        num_prompt_tokens = len(generation.request.prompt_token_ids) - generation.share.num_free
        self._keys.generated(generation.sender.key_name, num_prompt_tokens, len(generation.output_token_ids))
