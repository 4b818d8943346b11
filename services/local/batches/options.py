"""Options that several commands of ``slackwater batch`` have."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from services.local.batches.batch import JOB, JOB_ID
from services.local.batches.requests import CHAT, EMBEDDINGS, MAX_PART_LINES, RESPONSES, TEXT, RequestMaker
from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import FORMATS, TEXT_COLUMN, RowFile
from services.local.batches.rows.template import Template
from services.local.commands.chat import default_model
from services.local.commands.server import ApiClient
from shared.openai.batch_window import window_s
from shared.openai.errors import RequestError
from shared.settings.command_options import one_of

MAX_TOKENS_FIELD = {CHAT: "max_tokens", TEXT: "max_tokens", RESPONSES: "max_output_tokens"}
MADE_OF_ROWS = ("model", "messages", "prompt", "input", "instructions", "stream")  # what --body does not say
GENERATING = ("system", "max_tokens", "temperature", "top_p", "seed", "stop")  # what no embedding depends on
STDOUT = "-"  # to other commands
OWN_METADATA = JOB.partition("_")[0]


def _window(value: str) -> str:
    """Before anything is sent. Raises BadParameter."""
    try:
        window_s(value)
    except RequestError as error:
        raise typer.BadParameter(error.message) from error
    return value


BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id, or that of a job of several.")]
OutputOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write the results here, failed lines to NAME.errors.jsonl.")
]
AnswersOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Write the answers here: .csv, .tsv, .jsonl or .parquet beside their rows; of requests .jsonl as the API "
        "has it, failed lines to NAME.errors.jsonl.",
    ),
]
RowsOption = Annotated[
    Path | None,
    typer.Option("--rows", exists=True, dir_okay=False, help="The file that was submitted: its columns come first."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        callback=one_of("format", FORMATS),
        help=f"Of the rows: {', '.join(FORMATS)}; by default as the file's name or its beginning tells.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
WindowOption = Annotated[
    str,
    typer.Option(
        "--window", callback=_window, help="When it expires: hours or days from 1h to 30d, such as 12h or 7d."
    ),
]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Attached to each batch.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """How requests are made of rows."""

    prompt: Annotated[
        str | None,
        typer.Option(
            help=f"Of each row, with its columns in braces: 'Summarize: {{{TEXT_COLUMN}}}'; {{{{ and }}}} are braces. "
            f"Plain text has the column {TEXT_COLUMN}, and is the prompt itself by default."
        ),
    ] = None
    system: Annotated[str | None, typer.Option(help="The system message, with columns like --prompt.")] = None
    model: Annotated[str | None, typer.Option(help="By default the first that the server lists.")] = None
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The longest answer.")] = None
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Sample from so much of the spread.")] = None
    seed: Annotated[int | None, typer.Option(help="Of each row's sampling.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End an answer here.")] = None
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="""Further fields of each request: '{"top_k": 5}'.""")
    ] = None
    format: FormatOption = None
    batch_rows: Annotated[
        int, typer.Option(min=1, max=MAX_PART_LINES, help="Of one batch; more rows make several.")
    ] = MAX_PART_LINES

    def given(self) -> list[str]:
        """Those that make requests of rows, as they were written."""
        names = ("prompt", "system", "model", "max_tokens", "temperature", "top_p", "seed", "stop", "body")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]

    def maker(self, client: ApiClient, endpoint: str, file: RowFile) -> RequestMaker:
        """Raises RowsError, BadParameter and ApiError."""
        if endpoint == TEXT and self.system is not None:
            raise typer.BadParameter(f"{TEXT} has no system message", param_hint="'--system'")
        if endpoint == EMBEDDINGS and (names := [name for name in GENERATING if getattr(self, name) is not None]):
            hint = f"'--{names[0].replace('_', '-')}'"
            raise typer.BadParameter(f"{EMBEDDINGS} generates nothing", param_hint=hint)
        prompt, columns = self.prompt, file.columns()
        if prompt is None and file.format == "text":
            prompt = f"{{{TEXT_COLUMN}}}"
        if prompt is None:
            known = f"; the columns of {file.name} are {', '.join(columns)}" if columns else ""
            problem = f"rows need a template, such as 'Summarize: {{text}}'{known}"
            raise typer.BadParameter(problem, param_hint="'--prompt'")
        system = None if self.system is None else Template.parse(self.system)
        body = self._fields(endpoint) | {"model": self.model or default_model(client)}
        maker = RequestMaker(endpoint=endpoint, prompt=Template.parse(prompt), system=system, body=body)
        missing = [] if columns is None else [name for name in maker.columns if name not in columns]
        if missing:
            raise RowsError(f"{file.name} line 1: no column {missing[0]!r}; its columns are {', '.join(columns or ())}")
        return maker

    def _fields(self, endpoint: str) -> dict[str, Any]:
        own = {
            MAX_TOKENS_FIELD.get(endpoint, "max_tokens"): self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop or None,
        }
        return _object(self.body) | {name: value for name, value in own.items() if value is not None}


def metadata_from(pairs: list[str] | None) -> dict[str, str]:
    """Raises BadParameter."""
    metadata = {}
    for pair in pairs or ():
        key, is_pair, value = pair.partition("=")
        if not is_pair or not key or key.startswith(OWN_METADATA):
            problem = f"{pair!r}: write KEY=VALUE, with a key that does not begin with {OWN_METADATA}"
            raise typer.BadParameter(problem, param_hint="'--metadata'")
        metadata[key] = value
    return metadata


def job_id(value: str | None) -> str | None:
    """Raises BadParameter for what is no id of a job."""
    if value is not None and not JOB_ID.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is no id of a job, which is job_ and 24 hexadecimal digits")
    return value


def require_writable(*paths: Path, force: bool) -> None:
    """Before anything is sent. Raises BadParameter where results could not be written."""
    if str(paths[0]) == STDOUT:
        raise typer.BadParameter("name a file; results do not go to stdout", param_hint="'--output'")
    if paths[0].exists() and not paths[0].is_file():  # a device or a pipe
        return
    for path in paths:
        folder = path.resolve().parent
        if not folder.is_dir():
            problem = f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            problem = f"{folder} cannot be written to"
        elif path.exists() and not force:
            problem = "it is there already; replace it with --force, or name another file"
        else:
            continue
        raise typer.BadParameter(f"cannot write {path}: {problem}", param_hint="'--output'")


def require_other(requests: Path, *paths: Path) -> None:
    """Raises BadParameter where results would take the place of the requests."""
    for path in paths:
        if path.exists() and path.samefile(requests):
            raise typer.BadParameter(f"{path} is what is submitted; name another file", param_hint="'--output'")


def error_path(output: Path) -> Path:
    """Where failed lines are written as the API has them."""
    return output.with_suffix(".errors.jsonl")


def _object(text: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        raise typer.BadParameter(f"no JSON: {error}", param_hint="'--body'") from error
    if not isinstance(fields, dict):
        raise typer.BadParameter("no JSON object", param_hint="'--body'")
    named = [name for name in MADE_OF_ROWS if name in fields]
    if named:
        raise typer.BadParameter(f"{named[0]} is not for it to say", param_hint="'--body'")
    return fields
