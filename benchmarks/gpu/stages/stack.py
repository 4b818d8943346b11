"""A stack of the torch engine as its user has it, under a replay of the load generator."""

import contextlib
import gc
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.context import Context, Found, SkippedError
from benchmarks.harness.table import Row

if TYPE_CHECKING:
    from benchmarks.gpu.stack_run import Found as Run
    from loadgen.report.report import OfflineReport, OnlineReport, Summary

SMALL, LARGE = "Llama-3.2-1B", "Llama-3.1-8B"
LARGE_NEEDS_BYTES = 40 << 30  # weights, and KV of more requests than one
PACKAGES = (
    *("aiohttp", "cryptography", "fastapi", "httptools", "httpx", "jinja2", "llguidance", "msgspec", "nacl", "nats"),
    *("nkeys", "opentelemetry", "opentelemetry.exporter.prometheus", "packaging", "psutil", "python_multipart", "rich"),
    *("safetensors", "scipy", "sortedcontainers", "tokenizers", "transformers", "typer", "uvicorn", "uvloop"),
)
"""Of the services and of the load generator, as they are imported."""
COUNTERS = (
    *("steps", "steps_planned", "steps_local", "steps_idle", "steps_offline", "steps_interrupted", "plans_stale"),
    *("preemptions", "pauses", "offline_dropped", "finished_online", "finished_offline", "aborted", "prompt_tokens"),
    *("cached_tokens", "online_tokens", "offline_tokens", "busy_s", "messages_dropped", "messages_failed"),
)


def stage(context: Context) -> Found:
    """Raises AssertionError where an online request failed, or no offline token came."""
    _require_installed()
    import uvloop

    from benchmarks.gpu.stack_load import plan_of
    from benchmarks.gpu.stack_run import run
    from loadgen.errors import ServerError

    plan = plan_of(context)
    with _model(context) as (name, model), tempfile.TemporaryDirectory() as folder:
        yield f"{name}; {len(plan.requests)} online requests in {plan.scaling.duration_s:g} s."
        try:
            found = uvloop.run(run(plan, model, context.device, Path(folder)))
        except ServerError as error:
            print(error, file=sys.stderr)
            raise RuntimeError(str(error).partition("\n")[0]) from None
    yield from _rows(found)
    wrong = found.wrong()
    assert not wrong, "; ".join(wrong)
    return _said(found)


def _require_installed() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SkippedError(f"not installed: {', '.join(missing)}")
    from services.local.stack.service_commands import nats_binary
    from shared.errors import StackError

    try:
        nats_binary()
    except StackError as error:
        raise SkippedError(str(error)) from error


@contextlib.contextmanager
def _model(context: Context) -> Iterator[tuple[str, str]]:
    """What it is, and how ``slackwater up`` is told of it. No memory of the device is held for it."""
    if context.model is not None:
        yield context.model, context.model
        return
    import torch

    from benchmarks.gpu.models import random_model

    is_gpu = context.device == "cuda"
    sizes = SMALL if is_gpu and torch.cuda.mem_get_info()[1] < LARGE_NEEDS_BYTES else LARGE
    with random_model(context, sizes) as folder:
        gc.collect()
        if is_gpu:
            torch.cuda.empty_cache()
        yield (f"{sizes}'s sizes" if is_gpu else "A tiny model") + ", random weights", str(folder)


def _rows(found: "Run") -> Iterator[Row | str]:
    from loadgen.report.outcome import OFFLINE_ONLY, ONLINE_ONLY, TOGETHER

    report = found.report
    names = {ONLINE_ONLY: "online alone", OFFLINE_ONLY: "offline alone", TOGETHER: "together"}
    for phase, name in names.items():
        outcome = found.phases[phase]
        idle = {"idle share": _cell(found.idle_share(phase), ".2f")}
        yield {"load": name, **_online(outcome.online), **_offline(outcome.offline), **idle}
    yield "Together over alone; harvest: offline tokens/s over those alone times the idle share of online work."
    online = report.interference
    ratios = {
        "TTFT mean": online and online.ttft_ms.mean,
        "TTFT p99": online and online.ttft_ms.p99,
        "TBT mean": online and online.tbt_ms.mean,
        "TBT p99": online and online.tbt_ms.p99,
        "offline tokens/s": _offline_ratio(found),
        "harvest": report.harvest,
    }
    yield {name: _cell(ratio, ".3f") for name, ratio in ratios.items()}
    yield from report.notes
    yield "Budgets of a step, and what the executor counted from its start on."
    yield from map(_budget, found.status["budgets"])
    yield from _counters(found.status["executors"])
    yield "Processor seconds a second, by process."
    shares = {name: found.cpu_share(phase) for phase, name in names.items()}
    for process in shares["together"]:
        yield {"process": process, **{name: _cell(share.get(process), ".3f") for name, share in shares.items()}}


def _online(side: "OnlineReport | None") -> dict[str, str]:
    """TTFT and TBT in milliseconds."""
    cells = {"online requests": _cell(side and side.completed, "d"), "failed": _cell(side and side.errors, "d")}
    for name, summary in (("TTFT", side and side.ttft_ms), ("TBT", side and side.tbt_ms)):
        cells |= _summary(name, summary)
    return cells | {"output tokens/s": _cell(side and side.output_tokens_per_s, ",.0f")}


def _summary(name: str, summary: "Summary | None") -> dict[str, str]:
    mean, p99 = (summary.mean, summary.p99) if summary else (None, None)
    return {f"{name} mean ms": _cell(mean, ",.1f"), f"{name} p99 ms": _cell(p99, ",.1f")}


def _offline(side: "OfflineReport | None") -> dict[str, str]:
    return {
        "offline requests": _cell(side and side.completed, "d"),
        "offline tokens/s": _cell(side and side.total_tokens_per_s, ",.0f"),
        "offline output tokens/s": _cell(side and side.output_tokens_per_s, ",.0f"),
    }


def _offline_ratio(found: "Run") -> float | None:
    """Tokens/s together over those alone."""
    alone = found.report.baseline.offline if found.report.baseline else None
    together = found.report.offline
    if not alone or not together or not alone.total_tokens_per_s or together.total_tokens_per_s is None:
        return None
    return together.total_tokens_per_s / alone.total_tokens_per_s


def _budget(budget: Mapping[str, Any]) -> Row:
    return {
        "profile": budget["profile_key"],
        "source": budget["source"],
        "tolerance": _cell(budget["tolerance"], "g"),
        "budget ms": _cell(budget["latency_budget_ms"], ".2f"),
    }


def _counters(executors: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for executor in executors:
        counters = executor["counters"]
        for name in COUNTERS:
            count = format(counters[name], ",.1f" if name.endswith("_s") else ",d")
            yield {"executor": executor["info"]["executor_id"], "counter": name, "count": count}


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _said(found: "Run") -> str:
    interference = found.report.interference
    tbt = interference and interference.tbt_ms.mean
    return f"online TBT {_cell(tbt, '.2f')}x of alone, offline {_cell(_offline_ratio(found), '.2f')} of alone"
