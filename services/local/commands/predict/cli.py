"""The command line of ``slackwater predict``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from services.local.commands.parameters import DataDirOption, JsonOption, NatsOption
from services.local.commands.predict.ask import ask, list_models, parse_decodes, parse_prefills
from services.local.commands.predict.table import show_models, show_prediction
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.json_text import json_text
from shared.protocol.prediction import PredictBatch


def predict(
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
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """How long a step with this batch takes, and what each of its requests adds. Without a batch: the models known."""
    try:
        asked = PredictBatch(parse_prefills(prefill or []), parse_decodes(decode or []), whose)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not asked.prefills and not asked.decode_context_lens:
        models = asyncio.run(list_models(data_dir, nats))
        if as_json:
            print(json_text(models))
        else:
            show_models(models)
        return
    prediction = asyncio.run(ask(asked, data_dir, nats))
    if as_json:
        print(json_text(prediction))
    else:
        show_prediction(asked, prediction)
