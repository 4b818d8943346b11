"""Options that several commands share, as dataclasses: each field becomes an option of the command."""

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from loadgen.errors import WorkloadError
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import load_backlog
from loadgen.workload.prompts import read_filler
from loadgen.workload.scaling import Scaling, TraceReading
from loadgen.workload.traces import read_trace

STANDARD_OUTPUT = "-"
MAX_TIMEOUT_S = 604_800.0  # a week; no timer is endless


def _writable(value: str | None) -> str | None:
    """Before anything runs for hours. Raises BadParameter."""
    if value is None or value == STANDARD_OUTPUT:
        return value
    file = Path(value).resolve()
    if not file.parent.is_dir():
        raise typer.BadParameter(f"cannot write {value}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise typer.BadParameter(f"cannot write {value}: it is a folder, or may not be written")
    return value


JsonFileOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", callback=_writable, help="Write the report as JSON; - is stdout, no table."
    ),
]
ProgressOption = Annotated[bool | None, typer.Option(help="Bars on stderr; default on a terminal.")]


class OfflineMode(enum.StrEnum):
    """How the backlog goes to the server."""

    AUTO = "auto"
    BATCH = "batch"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """The trace, the backlog, and how they are cut and scaled."""

    online: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Arrivals: Azure CSV, Mooncake JSONL or BurstGPT CSV (.gz).")
    ] = None
    offline: Annotated[
        Path | None, typer.Option(metavar="PROMPTS", help="Backlog: JSONL or CSV of prompts, or lengths (.gz).")
    ] = None
    start: Annotated[float, typer.Option(help="Skip so many seconds of the trace.")] = 0.0
    qps: Annotated[float | None, typer.Option(help="Requests per second: a random sample of the trace (HyGen).")] = None
    rate_scale: Annotated[
        float | None, typer.Option(help="Times the trace's rate: drops or replicates at random (OOCO).")
    ] = None
    time_scale: Annotated[float, typer.Option(help="Seconds of the trace that pass in one second.")] = 1.0
    length_scale: Annotated[float, typer.Option(help="Factor on prompt and output lengths.")] = 1.0
    max_context: Annotated[int | None, typer.Option(min=2, help="Cut lengths to it; else the server's.")] = None
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0
    model_path: Annotated[
        Path | None, typer.Option(help="A model folder with tokenizer.json, to make prompts of real text in ids.")
    ] = None
    filler: Annotated[Path | None, typer.Option(help="Text to cut online prompts from (.gz).")] = None
    offline_limit: Annotated[int | None, typer.Option(min=1, help="So many of the prompts.")] = None
    offline_max_tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens of each prompt.")] = None

    def plan(self, duration_s: float, model: str | None, **options: Any) -> ReplayPlan:
        """Read the files. ``options``: further fields of the plan. Raises TraceError, WorkloadError."""
        scaling = Scaling(
            self.start, duration_s, self.qps, self.rate_scale, self.time_scale, self.length_scale, self.seed
        )
        reading = TraceReading(read_trace(self.online)) if self.online else None
        return ReplayPlan(
            requests=scaling.apply(reading) if reading else [],
            prompts=load_backlog(self.offline, self.offline_limit, self.offline_max_tokens) if self.offline else [],
            scaling=scaling,
            trace=_shown(self.online) if self.online else None,
            prompt_file=_shown(self.offline) if self.offline else None,
            model=model,
            model_path=self.model_path,
            filler=read_filler(self.filler) if self.filler else None,
            max_context=self.max_context,
            trace_notes=scaling.notes(reading.last_s) if reading else [],
            **options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions:
    """How a server gets its backlog."""

    offline_mode: Annotated[OfflineMode, typer.Option(help="A batch where the server has them, or plain requests.")] = (
        OfflineMode.AUTO
    )
    offline_concurrency: Annotated[int, typer.Option(min=1, help="Plain offline requests at a time.")] = 16
    offline_extra: Annotated[
        str | None, typer.Option(metavar="JSON", help='Further fields of each offline request, as {"priority": 1}.')
    ] = None
    count_generated: Annotated[
        bool, typer.Option("--count-generated", help="Count a batch's tokens as they come, not as its requests end.")
    ] = False
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before the window begins.")] = 0.0

    def plan_options(self) -> dict[str, Any]:
        """Fields of a ReplayPlan. Raises WorkloadError."""
        return {
            "offline_mode": self.offline_mode.value,
            "offline_concurrency": self.offline_concurrency,
            "offline_extra": _json_object(self.offline_extra),
            "count_generated": self.count_generated,
            "warm_up_s": self.warm_up,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingOptions:
    """What of the server is asked, and for how long."""

    model: Annotated[str | None, typer.Option(help="One of the server's; default its first.")] = None
    duration: Annotated[float, typer.Option(help="Seconds that the replay lasts.")] = 120.0
    timeout: Annotated[
        float, typer.Option(min=0.001, max=MAX_TIMEOUT_S, help="Seconds after which a request has failed.")
    ] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a run measures, and how it shows it."""

    drain: Annotated[bool, typer.Option("--drain", help="Let the backlog finish instead of cancelling it.")] = False
    slo: Annotated[
        list[str] | None, typer.Option(help="ttft_p99<=800ms, or tbt_mean<=1.05x of the baseline; repeatable.")
    ] = None
    baseline: Annotated[
        bool, typer.Option("--baseline", help="First run online only and offline only, and compare.")
    ] = False
    offline_only_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Length of the offline-only run over the window's.")
    ] = 0.5
    json_file: JsonFileOption = None
    progress: ProgressOption = None

    def plan_options(self) -> dict[str, Any]:
        """Fields of a ReplayPlan. Raises SloError."""
        return {
            "slos": [parse_slo(expr) for expr in self.slo or []],
            "baseline": self.baseline,
            "offline_only_share": self.offline_only_share,
            "drain": self.drain,
        }


def _shown(path: Path) -> str:
    """As text, also where its name is not UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _json_object(text: str | None) -> dict[str, Any]:
    """An option's JSON; nothing where it was not given. Raises WorkloadError for what is no object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkloadError(f"{text!r} is no JSON object: {error}") from error
