"""docs/metrics.md, made of the series: ``python -m services.gateway.metrics_reference > docs/metrics.md``."""

from collections.abc import Iterable, Iterator

from services.gateway.live.metrics import KINDS, generation_series
from services.gateway.live.vllm_engines import BY_SOURCE, CACHE_CONFIG, OF_ENGINES
from services.gateway.live.vllm_requests import SUCCESS, histograms
from services.gateway.metrics import tables
from services.gateway.metrics.series import Series, Type

HEAD = """\
# Metrics

Every series of a gateway's `/metrics`, in Prometheus's text format, which needs no [key](gateway.md#api-keys):
nothing of a request or of a key is in it. `deploy/prometheus/` has a configuration and
[alerts](guides/production.md#alerts).

A gateway counts its own HTTP and live requests; `sum` over gateways is the whole. What it tells of executors, budgets,
SLOs, services and batches it has heard on the bus, as every other gateway has: of several, take `max by` the labels.
Counters of an executor begin anew when it does. A histogram has the series `_bucket` (label `le`), `_sum` and `_count`.
"""
VLLM = """\
## vLLM's names

The same under the names, labels and buckets of vLLM 0.32, so that boards made for it work as they are: `model_name` is
the name that clients use for the model, with any of its LoRA adapters too, `engine` the executor's id. Requests and
latencies are those of online and flex requests, seen at the gateway, each choice of `n` for itself; tokens, cache and
queues are those of the executors, lines of batches too. vLLM's other series have no equivalent: a gateway does not see
when a request leaves its executor's queue (`vllm:request_queue_time_seconds`, `vllm:request_prefill_time_seconds`,
`vllm:request_inference_time_seconds`), and there is no speculation or multi-modal cache to tell of. Which LoRA
adapters there are `/v1/models` says.
"""
ANY_CONTEXT = 1_000_000_000
TOKENS = "1, 2, 5, 10 and so on, up to the model's context"


def all_series() -> dict[str, tuple[Series, ...]]:
    """Ours, by the headings that they stand under."""
    return {
        "Online and flex requests": tuple(each for kind in KINDS for each in generation_series(kind).values()),
        "HTTP": tables.HTTP,
        "The gateway": (*tables.PROCESS.values(), tables.BUS_ROUND_TRIP),
        "Executors": tables.EXECUTORS,
        "Executors, since each started": tuple(tables.EXECUTOR_COUNTERS.values()),
        "Budgets and SLOs": tables.BUDGETS,
        "Batches": tables.OF_BATCHES,
        "Services": tables.SERVICES,
    }


def vllm_series() -> tuple[Series, ...]:
    """Those under vLLM's names."""
    return (*(series for series, _ in OF_ENGINES), BY_SOURCE, CACHE_CONFIG, SUCCESS, *histograms(ANY_CONTEXT).values())


def metrics_reference() -> Iterator[str]:
    """The page, in pieces that stand on lines of their own."""
    yield HEAD
    for title, series in all_series().items():
        yield f"## {title}\n"
        yield from _table(series)
    yield VLLM
    yield from _table(vllm_series())


def _table(series: Iterable[Series]) -> Iterator[str]:
    yield "| series | type | labels | is |\n| --- | --- | --- | --- |"
    for each in series:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        buckets = f"; buckets {_buckets(each)}" if each.type is Type.HISTOGRAM else ""
        yield f"| `{each.exposed}` | {each.type} | {labels} | {each.meaning}{buckets} |"
    yield ""


def _buckets(series: Series) -> str:
    return TOKENS if series.buckets[-1] > ANY_CONTEXT / 10 else ", ".join(f"{bound:g}" for bound in series.buckets)


if __name__ == "__main__":
    print("\n".join(metrics_reference()).rstrip())
