"""The command line of ``slackwater predict``."""

import asyncio
from typing import Annotated

import typer

from services.local.commands.parameters import BusOptions, JsonOption, show
from services.local.commands.predict.ask import ask, list_models, parse_decodes, parse_prefills
from services.local.commands.predict.table import print_models, print_prediction
from shared.protocol.prediction import PredictBatch
from shared.settings.command_options import with_option_groups


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
