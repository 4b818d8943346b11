"""``slackwater batch submit | wait | results | retry``."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from services.local.batches.answer_files import AnswerFiles
from services.local.batches.batch import JOB_PREFIX, has_ended, whole_job, with_retries
from services.local.batches.ending import KEPT, exit_as_they_ended, kept, show_batches
from services.local.batches.options import (
    AnswersOption,
    BatchId,
    ForceOption,
    FormatOption,
    MetadataOption,
    PromptOptions,
    RowsOption,
    WindowOption,
    job_id,
    metadata_from,
)
from services.local.batches.requests import CHAT, ENDPOINTS
from services.local.batches.retry import retry_unanswered
from services.local.batches.rows.files import RowFile, format_of
from services.local.batches.source import Source, require_readable, source_of
from services.local.batches.submission import Submission
from services.local.batches.telling import Telling
from services.local.batches.waiting import wait_for
from services.local.commands.parameters import JsonOption
from services.local.commands.server import Json, ServerOptions
from shared.errors import ApiError
from shared.openai.objects import new_id
from shared.settings.command_options import one_of, with_option_groups

EndpointOption = Annotated[
    str | None,
    typer.Option(
        callback=one_of("endpoint", ENDPOINTS),
        help=f"{', '.join(ENDPOINTS)}; by default the first request's url, of rows {CHAT}.",
    ),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Stay until it has ended.")]
FileArgument = Annotated[
    Path,
    typer.Argument(
        callback=require_readable,
        help="JSONL of requests; or rows: CSV, TSV, JSONL, Parquet, or text with a prompt a line. - is stdin.",
    ),
]


@with_option_groups
def submit(
    *,
    file: FileArgument,
    prompts: PromptOptions,
    endpoint: EndpointOption = None,
    window: WindowOption = "24h",
    metadata: MetadataOption = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="JOB", callback=job_id, help="Submit what a job lacks of these rows."),
    ] = None,
    wait: WaitOption = False,
    output: AnswersOption = None,
    force: ForceOption = False,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Upload requests, or rows that --prompt makes requests of, and start their batch. --output implies --wait.

    Rows are looked at whole before anything is sent, and cut into batches of one job, whose id the other commands take
    too. Their answers are written beside them in their order: the row's own columns, then answer, finish_reason and
    error.

    The exit status then says how it ended: 0 where every line is done, 3 where it completed and lines have failed, 4
    where it failed as a whole, 5 where it expired, 6 where it was cancelled; 1 where there is no server, or it refuses,
    or a row is at fault, and 130 after Ctrl-C, when the batch goes on.
    """
    files, attached = AnswerFiles(output, force), metadata_from(metadata)
    with source_of(file, output, force) as source:
        rows = _rows_of(source, prompts)
        files.require(rows, source.path)
        asked = endpoint or (CHAT if rows else _endpoint_of(source))
        with server.client() as client:
            with Telling.on_stderr() as telling:
                submission = Submission(client, telling, asked, window, attached)
                id, batches = _submit(submission, source, rows, prompts, resume)
                with kept(KEPT, _again(id, source, rows, files)):
                    if wait or output:
                        batches = wait_for(client, [batch["id"] for batch in batches], telling)
            with kept(KEPT, _again(id, source, rows, files)):
                written = None
                if rows is None and not files.is_table:
                    files.fetch(client, batches[0])
                else:
                    written = files.write(client, [[batch] for batch in batches], rows)
        source.is_needed = False
    show_batches(id, batches, as_json)  # at last: answers are written though nobody reads this
    if wait or output:
        exit_as_they_ended(batches, written, None if output else _results(id))


@with_option_groups
def wait(
    *,
    batch_id: BatchId,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Stay until a batch has ended; on a terminal with a bar, else with a line now and then.

    The exit status says how it ended, as that of batch submit. After Ctrl-C it can be waited for again.
    """
    with server.client() as client:
        ids = [batch["id"] for batch in whole_job(client, batch_id)]
        with Telling.on_stderr() as telling, kept("wait again", f"slackwater batch wait {batch_id}"):
            batches = wait_for(client, ids, telling)
        show_batches(batch_id, batches, as_json)
    exit_as_they_ended(batches, why=_results(batch_id))


@with_option_groups
def results(
    *,
    batch_id: BatchId,
    output: AnswersOption = None,
    rows: RowsOption = None,
    format: FormatOption = None,
    retries: Annotated[bool, typer.Option("--retries", help="With the answers that batch retry brought.")] = False,
    force: ForceOption = False,
    server: ServerOptions,
) -> None:
    """Write the answers of a batch that has ended, in the order of its lines; with --rows beside the file's columns.

    The exit status is 0 where every line has an answer, else that of batch submit.
    """
    if output is None:
        raise typer.BadParameter("name a file", param_hint="'--output'")
    files, file = AnswerFiles(output, force), _row_file(rows, format)
    files.require(file)
    with server.client() as client:
        batches = whole_job(client, batch_id)
        for batch in batches:
            _require_ended(batch)
        chains = [with_retries(client, batch) if retries else [batch] for batch in batches]
        written = files.write(client, chains, file)
    exit_as_they_ended(batches, written)


@with_option_groups
def retry(
    *,
    batch_id: BatchId,
    window: WindowOption = "24h",
    metadata: MetadataOption = None,
    wait: WaitOption = False,
    output: AnswersOption = None,
    rows: RowsOption = None,
    format: FormatOption = None,
    force: ForceOption = False,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Run the lines of a batch again that failed, expired or were cancelled, as a batch of their own.

    Lines that an earlier retry has answered do not run again. --output implies --wait, and takes the answers of both.
    The exit status is that of batch submit; 0 too where no line is without an answer.
    """
    files, attached, file = AnswerFiles(output, force), metadata_from(metadata), _row_file(rows, format)
    files.require(file)
    with server.client() as client:
        found = whole_job(client, batch_id)
        with Telling.on_stderr() as telling:
            made: list[Json] = []
            for batch in found:
                submission = Submission(client, telling, batch["endpoint"], window, attached)
                made += retry_unanswered(submission, with_retries(client, batch))
            ids = [batch["id"] for batch in made]
            with kept(KEPT, f"{_results(batch_id)} --retries"):
                if ids and (wait or output):
                    made = wait_for(client, ids, telling)
        with kept(KEPT, f"{_results(batch_id)} --retries"):
            written = files.write(client, [with_retries(client, batch) for batch in found], file) if output else None
    if made or as_json:
        show_batches(ids[0] if len(ids) == 1 else batch_id, made, as_json)
    else:
        print("every line has an answer: none runs again")
    if wait or output:
        exit_as_they_ended(made, written, None if output else f"{_results(batch_id)} --retries")


def _submit(
    submission: Submission, source: Source, rows: RowFile | None, prompts: PromptOptions, resume: str | None
) -> tuple[str, list[Json]]:
    """The id of what was made, a batch or a job, and its batches."""
    if rows is None:
        if resume is not None:
            raise typer.BadParameter(f"{source.name} is one batch; submit it anew", param_hint="'--resume'")
        with source.path.open("rb") as opened:
            batch = submission.file(opened, source.name, submission.metadata)
        return batch["id"], [batch]
    maker = prompts.maker(submission.client, submission.endpoint, rows)
    parts = submission.parts(maker, rows, prompts.batch_rows)
    job_id = resume or new_id(JOB_PREFIX, time.time())
    source.is_needed = True
    with kept("what was sent is kept; go on with the same command and", f"--resume {job_id}"):
        return job_id, submission.rows(job_id, parts, maker, rows, resumed=resume is not None)


def _rows_of(source: Source, prompts: PromptOptions) -> RowFile | None:
    """None where the file has requests. Raises BadParameter."""
    rows = source.rows(prompts.format)
    if rows.format != "jsonl" or prompts.prompt is not None:
        return rows
    if source.first_request() is None:
        what = (
            f"{source.name} has rows, no requests: say what to ask of each, as 'Summarize: {{text}}' of a column text"
        )
        raise typer.BadParameter(what, param_hint="'--prompt'")
    if given := prompts.given():
        raise typer.BadParameter(f"{source.name} has requests, which say that themselves", param_hint=f"'{given[0]}'")
    return None


def _endpoint_of(source: Source) -> str:
    """The ``url`` of the first request; the chat endpoint where it has none, for the server to judge."""
    url = (source.first_request() or {}).get("url")
    return url if isinstance(url, str) and url in ENDPOINTS else CHAT


def _row_file(path: Path | None, format: str | None) -> RowFile | None:
    return None if path is None else RowFile(path, format or format_of(path, path.name), path.name)


def _again(id: str, source: Source, rows: RowFile | None, files: AnswerFiles) -> str:
    """The command that fetches the results."""
    if rows is None:
        return f"slackwater batch get {id} --output FILE"
    output = shlex.quote(str(files.output or "FILE"))
    beside = "" if source.is_passing else f" --rows {shlex.quote(str(rows.path))} --format {rows.format}"
    return f"slackwater batch wait {id}; slackwater batch results {id} --output {output}{beside}"


def _results(id: str) -> str:
    return f"slackwater batch results {id} --output FILE"


def _require_ended(batch: Json) -> None:
    if not has_ended(batch):
        again = f"slackwater batch wait {batch['id']}"
        raise ApiError(f"batch {batch['id']} is {batch['status']}; wait for its end: {again}")
