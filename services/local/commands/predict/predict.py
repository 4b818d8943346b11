"""``slackwater predict``: ask the predictor of a stack, or list its models."""

import asyncio
import re
from collections.abc import Iterator
from itertools import repeat
from typing import Annotated

import msgspec
import typer

from services.local.commands.parameters import BusOptions, JsonOption, show
from services.local.commands.predict.table import ListedModel, print_models, print_prediction
from shared.bus import Entry
from shared.errors import NoResponderError, StackError
from shared.protocol import subjects
from shared.protocol.latency_models import LatencyModelRecord
from shared.protocol.measurements import PrefillChunk
from shared.protocol.prediction import PredictBatch, Prediction
from shared.settings.command_options import with_option_groups

ASKER = "predict"  # its name on the bus
ANSWER_S = 5.0
PREFILL = re.compile(r"(?:(?P<count>\d+)x)?(?P<tokens>\d+)(?:@(?P<computed>\d+))?")
DECODE = re.compile(r"(?:(?P<count>\d+)x)?(?P<tokens>\d+)")
MAX_REQUESTS = 65_536  # of one shape


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
    """How long a step with this batch takes, and what each of its requests adds. Without a batch: the models known."""
    try:
        asked = PredictBatch(parse_prefills(prefill or []), parse_decodes(decode or []), whose)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if asked.prefills or asked.decode_context_lens:
        show(asyncio.run(ask(asked, stack)), as_json, lambda found: print_prediction(asked, found))
    else:
        show(asyncio.run(list_models(stack)), as_json, print_models)


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
            entries: list[Entry[LatencyModelRecord]] = await bucket.entries()
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
        yield from repeat(match, count)
