"""``slackwater predict``: ask the predictor of a stack, or list its models."""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from itertools import groupby, repeat
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from services.local.commands.parameters import BusOptions, JsonOption, show
from shared.bounds import MOST
from shared.errors import NoResponderError, StackError
from shared.latency.roofline import NEVER_SATURATED, RooflineLatencyModel
from shared.protocol import subjects
from shared.protocol.profiling.latency_models import (
    BoostedCurves,
    BrosLines,
    CurveRecord,
    EchoTimes,
    LatencyModelRecord,
    LinearCoefficients,
    ModelRecord,
    PredictBatch,
    Prediction,
    RooflineRates,
)
from shared.protocol.profiling.measurements import PrefillChunk
from shared.settings.command_options import with_option_groups

ASKER = "predict"  # its name on the bus
ANSWER_S = 5.0
PREFILL = re.compile(r"(?:(?P<count>\d+)x)?(?P<tokens>\d+)(?:@(?P<computed>\d+))?")
DECODE = re.compile(r"(?:(?P<count>\d+)x)?(?P<tokens>\d+)")
MAX_REQUESTS = 65_536  # of one shape
PROFILE_WIDTH = 20  # so that a narrow terminal folds the key, not the figures
KINDS = ("linear", "boosted", "roofline", "bros", "echo")
BROS_REGRESSORS = ("if prefills", "S_p", "pairs", "if decodes", "N_d", "S_d")
REGRESSORS = ("", "S_p", "S_d", "S_p²", "S_d²", "N_p", "N_d", "pairs")


class ListedModel(msgspec.Struct, frozen=True):
    """One published model. ``revision``: of its record on the bus."""

    revision: int
    record: LatencyModelRecord


@with_option_groups
def predict(
    *,
    prefill: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE", help="128; 256@1024: over 1,024 computed tokens; 4x128: four of them."),
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE", help="300: reads 300 tokens of KV, its own included; 8x512: eight of them."),
    ] = None,
    whose: Annotated[
        str, typer.Option("--of", help="A profile key, a model or an executor, where there are several.")
    ] = "",
    stack: BusOptions,
    as_json: JsonOption = False,
) -> None:
    """How long a step with these requests takes, and what each of them adds. Without any: the models known."""
    try:
        asked = PredictBatch(parse_prefills(prefill or []), parse_decodes(decode or []), whose)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if asked.prefills or asked.decode_context_lens:
        show(asyncio.run(ask(asked, stack)), as_json, lambda found: _print_prediction(asked, found))
    else:
        show(asyncio.run(list_models(stack)), as_json, _print_models)


def parse_prefills(shapes: list[str]) -> list[PrefillChunk]:
    """``128``, ``256@1024`` (256 tokens over 1,024 computed ones), ``4x128``. Raises ValueError."""
    matches = _matches(shapes, PREFILL, "prefill: write TOKENS, TOKENS@COMPUTED or COUNTxTOKENS, as in 256@1024")
    return [PrefillChunk(int(match["tokens"]), int(match["computed"] or 0)) for match in matches]


def parse_decodes(shapes: list[str]) -> list[int]:
    """``300`` (a decode that reads 300 tokens), ``8x512``. Raises ValueError."""
    matches = _matches(shapes, DECODE, "decode: write CONTEXT or COUNTxCONTEXT, as in 8x512")
    return [int(match["tokens"]) for match in matches]


async def ask(asked: PredictBatch, stack: BusOptions) -> Prediction:
    """Raises StackError where nobody answers, or the answer is that there is none."""
    async with stack.bus(ASKER) as bus:
        try:
            prediction = await bus.request(subjects.PREDICT, asked, Prediction, ANSWER_S)
        except NoResponderError as error:
            raise StackError("the predictor does not answer") from error
    if prediction.error:
        raise StackError(prediction.error)
    return prediction


async def list_models(stack: BusOptions) -> list[ListedModel]:
    """By profile key. Raises StackError where no bus is there."""
    async with stack.bus(ASKER) as bus:
        bucket = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        try:
            entries = await bucket.entries()
        except msgspec.DecodeError as error:
            raise StackError(f"the bus holds latency models of another version: {error}") from error
    listed = [ListedModel(entry.revision, entry.value) for entry in entries if entry.value is not None]
    return sorted(listed, key=lambda each: each.record.profile_key)


def _matches(shapes: list[str], pattern: re.Pattern[str], form: str) -> Iterator[re.Match[str]]:
    """One for each request."""
    for shape in shapes:
        match = pattern.fullmatch(shape)
        if match is None or int(match["tokens"]) < 1:
            raise ValueError(f"{shape!r} is no {form}")
        count = int(match["count"] or 1)
        if not 1 <= count <= MAX_REQUESTS:
            raise ValueError(f"{shape!r}: give 1 to {MAX_REQUESTS} of them")
        if max(int(number) for number in match.groups() if number) > MOST:
            raise ValueError(f"{shape!r}: no request has more than {MOST} tokens")
        yield from repeat(match, count)


def _print_prediction(asked: PredictBatch, prediction: Prediction) -> None:
    """The whole and whose it is, and a table of its requests, equal ones together."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    noise = "" if prediction.noise_floor is None else f", noise floor {prediction.noise_floor:.1%}"
    console.print(f"{prediction.latency_ms:.2f} ms", style="bold")
    console.print(f"{prediction.profile_key}: {prediction.kind} model, off by {prediction.mape:.1%} on average{noise}")
    table = Table("request", "adds ms", box=None, header_style="bold")
    names = [f"prefill {chunk.num_tokens}@{chunk.num_computed_tokens}" for chunk in asked.prefills]
    names += [f"decode {context_len}" for context_len in asked.decode_context_lens]
    costs_ms = (*prediction.prefill_costs_ms, *prediction.decode_costs_ms)
    for name, alike in groupby(zip(names, costs_ms, strict=True), key=lambda named: named[0]):
        of_each = [cost_ms for _, cost_ms in alike]
        table.add_row(f"{len(of_each)} x {name}" if len(of_each) > 1 else name, f"{sum(of_each):.3f}")
    console.print(table)


def _print_models(models: list[ListedModel]) -> None:
    """One row for each model, and below what they consist of."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not models:
        console.print("no latency model has been fitted yet")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("profile", overflow="fold", min_width=PROFILE_WIDTH)
    for name in ("model", "samples", *KINDS, "noise", "drifts", "rev"):
        table.add_column(name, no_wrap=True)
    for listed in models:
        table.add_row(*_row(listed.revision, listed.record))
    console.print(table)
    console.print(f" {', '.join(KINDS)}: how far off on batches not fitted to; noise: what equal batches differ by")
    for listed in models:
        console.print(f"\n{listed.record.profile_key}, ms\n  {formula(listed.record.model)}")
        if listed.record.drifts:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(listed.record.drifted_at_s or 0.0))
            ratio = listed.record.drift_ratio or 1.0
            console.print(f"  last drift at {when}: steps took {ratio:.2f} times as long as predicted")


def _row(revision: int, record: LatencyModelRecord) -> list[str]:
    errors = {candidate.kind: candidate.mape for candidate in record.candidates}
    return [
        record.profile_key,
        record.kind,
        str(record.num_samples),
        *(_percent(errors.get(kind)) for kind in KINDS),
        _percent(record.noise_floor),
        str(record.drifts),
        str(revision),
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def formula(model: ModelRecord) -> str:
    """The terms that are not 0; of a curve, what a unit costs and from where on."""
    match model:
        case LinearCoefficients(coefficients=coefficients):
            return _sum(coefficients, REGRESSORS)
        case BrosLines(coefficients=lines):
            return _sum(lines, BROS_REGRESSORS)
        case EchoTimes(coefficients=(alpha, beta, least, gamma, delta, balance)):
            prefills = f"max({_sum((alpha, beta), ('l²', 'S_p'))}, {least:.4g})"
            decodes = _sum((gamma, delta), ("max(L)", "mean(L)"))
            shorter = f" + {1 - balance:.4g} min(p, d)" if balance < 1 else ""
            return f"{balance:.4g} max(p, d){shorter}\n  p = {prefills}\n  d = {decodes}"
        case RooflineRates():
            return _rates(model)
        case BoostedCurves(base=base, curves=curves):
            return "\n  + ".join([f"{base:.4g}", *map(_curve, curves)])


def _sum(weights: Iterable[float], regressors: Iterable[str]) -> str:
    named = zip(weights, regressors, strict=True)
    return " + ".join(f"{weight:.4g} {regressor}".rstrip() for weight, regressor in named if weight) or "0"


def _rates(model: RooflineRates) -> str:
    """Those of OOCO's Table 4, in its order."""
    rates = model.rates
    flops = {
        "F_g": rates.gemm_flops_per_ms,
        "F_ap": rates.prefill_attention_flops_per_ms,
        "F_ad": rates.decode_attention_flops_per_ms,
    }
    moved = {"M_g": rates.gemm_bytes_per_ms, "M_a": rates.attention_bytes_per_ms, "B_c": rates.link_bytes_per_ms}
    computed = ", ".join(f"{name} {_digits(value / 1e6)} GFLOP/s" for name, value in flops.items())
    read = ", ".join(f"{name} {_digits(value / 1e6)} GB/s" for name, value in moved.items() if value is not None)
    overheads = f"O_p {rates.prefill_overhead_ms:.4g}, O_d {rates.decode_overhead_ms:.4g}"
    size = RooflineLatencyModel(model.architecture, rates, model.tensor_parallel).saturated_batch_size
    saturated = f"saturated from {size} decodes on" if size < NEVER_SATURATED else "never saturated"
    return f"{computed}\n  {read}\n  {overheads}; {saturated}"


def _digits(value: float) -> str:
    """Four that count."""
    return f"{float(f'{value:.4g}'):,.10g}"


def _curve(curve: CurveRecord) -> str:
    bends = (f"{slope:.4g} from {knot}" for knot, slope in zip(curve.knots, curve.slopes, strict=True))
    return f"{curve.of}: {', '.join(bends)}"
