"""``slackwater data list``: the public traces and sets of prompts behind the documentation's figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from loadgen.datasets import DATASETS, Dataset
from services.local.commands.parameters import JsonOption, show

DataOption = Annotated[
    Path | None,
    typer.Option("--data", exists=True, file_okay=False, help="A folder; say which of them are in it, or below it."),
]

data_app = typer.Typer(no_args_is_help=True)


@data_app.callback()
def data() -> None:
    """Several commands, of which there is one so far."""


class ListedDataset(Dataset, frozen=True, kw_only=True):
    """``path``: where it is in the folder; None where it is not there, or no folder was named."""

    path: str | None


@data_app.command("list")
def list_datasets(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the public traces and sets of prompts that the documentation's figures use: what they are, under which
    licence, and where to get them. Nothing is downloaded."""
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data is not None else []
    show([_listed(each, files) for each in DATASETS], as_json, lambda found: _print(found, data))


def _listed(dataset: Dataset, files: list[Path]) -> ListedDataset:
    path = dataset.found_in(files)
    return ListedDataset(**msgspec.structs.asdict(dataset), path=None if path is None else str(path))


def _print(datasets: list[ListedDataset], folder: Path | None) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for each in datasets:
        console.print(Text.assemble((each.name, "bold"), f"  {each.what}"))
        for line in _details(each, folder):
            console.print(Text(f"    {line}"))


def _details(dataset: ListedDataset, folder: Path | None) -> Iterator[str]:
    yield f"{dataset.licence}: {dataset.source}"
    yield f"{dataset.url} ({dataset.made})"
    if folder is not None:
        yield f"there: {dataset.path}" if dataset.path else f"not in {folder}: {dataset.file}"
    else:
        yield f"named here: {dataset.file}"
