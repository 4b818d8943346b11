"""Live requests under vLLM's names, labels and buckets (vllm/v1/metrics/loggers.py and buckets.py of 0.32), so that
boards made for vLLM show them. Online and flex requests, each choice of ``n`` one; lines of batches do not come through
a gateway."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.gateway.live.generation import Generation
from services.gateway.metrics.series import Series, Type
from shared.protocol.sampling import ENDS_WELL, FinishReason

LABELS = ("model_name", "engine")  # an engine is an executor, by its id; empty where none is known
MAX_LEFT = 32  # engines that are gone and keep their series

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SUCCESS = Series(
    "vllm:request_success",
    Type.COUNTER,
    "requests that ended, by reason: stop, length, abort, error",
    labels=(*LABELS, "finished_reason"),
)


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10 and so on, up to the model's context."""
    return tuple(
        step * 10**power
        for power in range(len(str(max_model_len)))
        for step in (1, 2, 5)
        if step * 10**power <= max_model_len
    )


def histograms(max_model_len: int) -> dict[str, Series]:
    """By what they are here."""

    def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Series:
        return Series(f"vllm:{name}", Type.HISTOGRAM, meaning, labels=LABELS, buckets=buckets)

    tokens = token_buckets(max_model_len)
    return {
        "ttft": histogram("time_to_first_token_seconds", "arrival to first token", TTFT_S),
        "itl": histogram("inter_token_latency_seconds", "between tokens of a request", BETWEEN_TOKENS_S),
        "tpot": histogram("request_time_per_output_token_seconds", "mean of that, by request", BETWEEN_TOKENS_S),
        "e2e": histogram("e2e_request_latency_seconds", "arrival to last token", REQUEST_S),
        "decode": histogram("request_decode_time_seconds", "first to last token", REQUEST_S),
        "prompt": histogram("request_prompt_tokens", "tokens of prompts", tokens),
        "computed": histogram("request_prefill_kv_computed_tokens", "of these, not found in the cache", tokens),
        "generated": histogram("request_generation_tokens", "generated tokens", tokens),
        "max_tokens": histogram("request_params_max_tokens", "max_tokens, or what the context left", tokens),
    }


@dataclass(frozen=True, slots=True)
class _Engine:
    histograms: dict[str, Histogram]
    success: dict[FinishReason, Counter]


class VllmRequests:
    """Latencies are those at the gateway; times and sizes of a whole request are of those that were answered whole."""

    def __init__(self, registry: CollectorRegistry, max_model_len: int, models: Mapping[str, str]) -> None:
        """``max_model_len``: the longest context of all models, in tokens; ``models``: by the name of a model, or of an
        adapter, that of the model which its engines are of: vLLM has no other in its labels."""
        self._models = models
        series = histograms(max_model_len)
        self._histograms = {
            name: Histogram(each.name, each.meaning, LABELS, registry=registry, buckets=each.buckets)
            for name, each in series.items()
        }
        self._success = Counter(SUCCESS.name, SUCCESS.meaning, SUCCESS.labels, registry=registry)
        self._engines: dict[tuple[str, str], _Engine] = {}  # by model and executor, in the order of their first word

    def tokens(self, generation: Generation, now_s: float, num_tokens: int) -> None:
        """As ``GenerationMetrics.tokens``."""
        engine = self._engine(generation).histograms
        if generation.last_token_s is None:
            engine["ttft"].observe(now_s - generation.started_s)
        else:
            engine["itl"].observe((now_s - generation.last_token_s) / num_tokens)

    def finished(self, generation: Generation, finish_reason: FinishReason) -> None:
        """As ``GenerationMetrics.finished``."""
        engine = self._engine(generation)
        engine.success[finish_reason].inc()
        first_s, last_s = generation.first_token_s, generation.last_token_s
        if finish_reason not in ENDS_WELL or first_s is None or last_s is None:
            return
        num_prompt_tokens, num_tokens = len(generation.request.prompt_token_ids), len(generation.output_token_ids)
        values = {
            "e2e": last_s - generation.started_s,
            "decode": last_s - first_s,
            "prompt": num_prompt_tokens,
            "computed": num_prompt_tokens - generation.num_cached_tokens,
            "generated": num_tokens,
            "max_tokens": generation.request.sampling.max_tokens,
        }
        if num_tokens > 1:
            values["tpot"] = (last_s - first_s) / (num_tokens - 1)
        for name, value in values.items():
            engine.histograms[name].observe(value)

    def forget(self, live: Iterable[str]) -> None:
        """Of executors that are not ``live`` any more, those that were heard of last keep their series."""
        there = {*live, ""}
        gone = [labels for labels in self._engines if labels[1] not in there]
        for labels in gone[: max(0, len(gone) - MAX_LEFT)]:
            del self._engines[labels]
            for each in self._histograms.values():
                each.remove(*labels)
            for reason in FinishReason:
                self._success.remove(*labels, reason.value)

    def _engine(self, generation: Generation) -> _Engine:
        labels = self._models[generation.request.model], "" if generation.place is None else generation.place[0]
        found = self._engines.get(labels)
        if found is None:
            series = {key: each.labels(*labels) for key, each in self._histograms.items()}
            success = {reason: self._success.labels(*labels, reason.value) for reason in FinishReason}
            found = self._engines[labels] = _Engine(series, success)
        return found
