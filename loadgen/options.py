"""The options of ``replay``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from loadgen.errors import WorkloadError


class OfflineMode(enum.StrEnum):
    """How the backlog goes to the server."""

    AUTO = "auto"
    BATCH = "batch"
    REQUESTS = "requests"


UrlOption = Annotated[str, typer.Option(help="An OpenAI-compatible server.")]
OnlineOption = Annotated[
    Path | None, typer.Option(metavar="TRACE", help="Arrivals: Azure CSV, Mooncake JSONL or BurstGPT CSV (.gz).")
]
OfflineOption = Annotated[
    Path | None, typer.Option(metavar="PROMPTS", help="Backlog: JSONL or CSV of prompts, or lengths (.gz).")
]
StartOption = Annotated[float, typer.Option(help="Skip so many seconds of the trace.")]
DurationOption = Annotated[float, typer.Option(help="Seconds that the replay lasts.")]
QpsOption = Annotated[float | None, typer.Option(help="Requests per second: a random sample of the trace (HyGen).")]
RateScaleOption = Annotated[
    float | None, typer.Option(help="Times the trace's rate: drops or replicates at random (OOCO).")
]
TimeScaleOption = Annotated[float, typer.Option(help="Seconds of the trace that pass in one second.")]
LengthScaleOption = Annotated[float, typer.Option(help="Factor on prompt and output lengths.")]
MaxContextOption = Annotated[int | None, typer.Option(min=2, help="Cut lengths to it; else the server's.")]
SeedOption = Annotated[int, typer.Option(help="Of the sampling.")]
ModelOption = Annotated[str | None, typer.Option(help="One of the server's; default its first.")]
ModelPathOption = Annotated[
    Path | None, typer.Option(help="A model folder with tokenizer.json, to make prompts of real text in ids.")
]
FillerOption = Annotated[Path | None, typer.Option(help="Text to cut online prompts from (.gz).")]
OfflineLimitOption = Annotated[int | None, typer.Option(min=1, help="So many of the prompts.")]
OfflineMaxTokensOption = Annotated[int | None, typer.Option(min=1, help="Output tokens of each prompt.")]
OfflineModeOption = Annotated[OfflineMode, typer.Option(help="A batch where the server has them, or plain requests.")]
OfflineConcurrencyOption = Annotated[int, typer.Option(min=1, help="Plain offline requests at a time.")]
OfflineExtraOption = Annotated[
    str | None, typer.Option(metavar="JSON", help='Further fields of each offline request, as {"priority": 1}.')
]
CountGeneratedOption = Annotated[
    bool, typer.Option("--count-generated", help="Count a batch's tokens as they come, not as its requests end.")
]
WarmUpOption = Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before the window begins.")]
DrainOption = Annotated[bool, typer.Option("--drain", help="Let the backlog finish instead of cancelling it.")]
SloOption = Annotated[
    list[str] | None, typer.Option(help="ttft_p99<=800ms, or tbt_mean<=1.05x of the baseline; repeatable.")
]
BaselineOption = Annotated[
    bool, typer.Option("--baseline", help="First run online only and offline only, and compare.")
]
OfflineOnlyShareOption = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Length of the offline-only run over the window's.")
]
TimeoutOption = Annotated[float, typer.Option(min=0.001, help="Seconds after which a request has failed.")]
JsonFileOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON; - is stdout, no table.")
]
ProgressOption = Annotated[bool | None, typer.Option(help="Bars on stderr; default on a terminal.")]


def json_object(text: str | None) -> dict[str, Any]:
    """An option's JSON; nothing where it was not given. Raises WorkloadError for what is no object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkloadError(f"{text!r} is no JSON object: {error}") from error
