"""Command line parameters that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, TypeVar

import typer

Value = TypeVar("Value", str, str | None)

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")  # what a batch's lines may ask for

DataDirOption = Annotated[
    Path,
    typer.Option(envvar="SLACKWATER_DATA_DIR", file_okay=False, help="Where the stack keeps its store and its logs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UrlOption = Annotated[
    str | None,
    typer.Option(envvar="SLACKWATER_URL", help="The server; by default the stack of the data directory."),
]


def one_of(what: str, known: Collection[str]) -> Callable[[Value], Value]:
    """A parameter callback that refuses everything else and names the known values; what was not given may pass."""

    def check(value: Value) -> Value:
        if value is not None and value not in known:
            raise typer.BadParameter(f"unknown {what} {value!r}; known: {', '.join(known)}")
        return value

    return check
