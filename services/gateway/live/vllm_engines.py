"""Executors under the names that vLLM has for its engines, by their last heartbeats: of all work."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.vllm_requests import LABELS, VllmRequests
from services.gateway.metrics.series import Series, Type
from shared.protocol.executors import Heartbeat

SOURCES = ("local_compute", "local_cache_hit")  # of vLLM's three; KV that moves in comes with its request


def _series(name: str, type: Type, meaning: str, *labels: str) -> Series:
    return Series(f"vllm:{name}", type, meaning, labels=(*LABELS, *labels))


def _num_prompt_tokens(beat: Heartbeat) -> int:
    return beat.counters.prompt_tokens + beat.counters.cached_tokens


OF_ENGINES: tuple[tuple[Series, Callable[[Heartbeat], float]], ...] = (
    (
        _series("num_requests_running", Type.GAUGE, "requests of both kinds that run"),
        lambda beat: beat.online_running + beat.offline_running,
    ),
    (
        _series("num_requests_waiting", Type.GAUGE, "requests of both kinds that wait on the executor"),
        lambda beat: beat.online_waiting + beat.offline_waiting,
    ),
    (
        _series("kv_cache_usage_perc", Type.GAUGE, "share of the KV blocks that are held, 0 to 1"),
        lambda beat: 1 - beat.num_free_blocks / beat.info.spec.num_blocks,
    ),
    (
        _series("prefix_cache_queries", Type.COUNTER, "tokens that were looked for in the prefix cache"),
        _num_prompt_tokens,
    ),
    (
        _series("prefix_cache_hits", Type.COUNTER, "of these, those that it had"),
        lambda beat: beat.counters.cached_tokens,
    ),
    (
        _series("num_preemptions", Type.COUNTER, "requests that lost their KV"),
        lambda beat: beat.counters.preemptions,
    ),
    (_series("prompt_tokens", Type.COUNTER, "of prompts, computed or found in the prefix cache"), _num_prompt_tokens),
    (
        _series("prompt_tokens_cached", Type.COUNTER, "of these, those that the prefix cache had"),
        lambda beat: beat.counters.cached_tokens,
    ),
    (
        _series("generation_tokens", Type.COUNTER, "generated tokens of both kinds"),
        lambda beat: beat.counters.online_tokens + beat.counters.offline_tokens,
    ),
)
BY_SOURCE = _series("prompt_tokens_by_source", Type.COUNTER, "prompt tokens, by whether the cache had them", "source")
CACHE_CONFIG = _series("cache_config_info", Type.GAUGE, "1, with the KV cache's size", "block_size", "num_gpu_blocks")


class VllmEngines(Collector):
    """Reads the registries whenever metrics are asked for. Counters begin anew with each incarnation of an executor."""

    def __init__(self, executors: Mapping[str, ExecutorRegistry], requests: VllmRequests) -> None:
        """``executors``: of each model, by the name that clients use."""
        self._executors = executors
        self._names = {registry.model: name for name, registry in executors.items()}
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        beats = [executor.heartbeat for registry in self._executors.values() for executor in registry.live()]
        self._requests.forget(beat.info.executor_id for beat in beats)
        for series, read in OF_ENGINES:
            yield series.read((self._engine(beat), read(beat)) for beat in beats)
        yield BY_SOURCE.read(self._by_source(beats))
        yield CACHE_CONFIG.read(self._cache_config(beats))

    def _by_source(self, beats: list[Heartbeat]) -> Iterator[tuple[list[str], float]]:
        for beat in beats:
            counts = beat.counters.prompt_tokens, beat.counters.cached_tokens
            for source, count in zip(SOURCES, counts, strict=True):
                yield [*self._engine(beat), source], count

    def _cache_config(self, beats: list[Heartbeat]) -> Iterator[tuple[list[str], float]]:
        for beat in beats:
            spec = beat.info.spec
            yield [*self._engine(beat), str(spec.block_size), str(spec.num_blocks)], 1

    def _engine(self, beat: Heartbeat) -> list[str]:
        return [self._names[beat.info.spec.model], beat.info.executor_id]
