"""Batches of rows as a user has them: the command line against a gateway, an executor and an offline-queue."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.local.cli import app
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

SLACKWATER = (sys.executable, "-c", "from services.local.cli import main; main()")
JOB = re.compile(r"job_[0-9a-f]{24}")
TOO_LONG = "word " * 9000  # for the model's context


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("stack")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        made.start_executor("executor-0", "--preset", "sarathi++", "--sim-time-scale", "0.1")
        made.start_gateway()
        made.wait_ready()
        yield made


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerows([("id", "question"), *((n, f"What is {n},\nplease?") for n in range(1, 8))])
    return path


def run(rig: GatewayRig, *args: str | Path, stdin: str = "") -> Result:
    words = ["batch", *map(str, args), "--url", rig.url]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, words, input=stdin)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as source:
        return list(csv.DictReader(source))


def batches_in(rig: GatewayRig, job_id: str) -> list[dict[str, Any]]:
    found = rig.http.get("/v1/batches", params={"limit": 100}).json()["data"]
    own = [each for each in found if (each["metadata"] or {}).get("slackwater_job") == job_id]
    return sorted(own, key=lambda each: int(each["metadata"]["slackwater_part"]))


def test_answers_stand_beside_the_rows_in_their_order(rig: GatewayRig, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.csv"
    options = ("--prompt", "{{{id}}} {question}", "--system", "Be brief.", "--max-tokens", "4", "--body", '{"seed": 1}')
    done = run(
        rig, "submit", rows, *options, "--batch-rows", "3", "--output", output, "--window", "7d", "--metadata", "a=b"
    )
    assert done.exit_code == 0, done.output
    found = read_csv(output)
    assert [row["id"] for row in found] == [str(n) for n in range(1, 8)]
    assert list(found[0]) == ["id", "question", "answer", "finish_reason", "error"]
    assert all(row["finish_reason"] in ("length", "stop") and not row["error"] for row in found)
    assert any(row["answer"] for row in found)
    match = JOB.search(done.stderr)
    assert match is not None
    parts = batches_in(rig, match[0])
    assert [part["request_counts"]["total"] for part in parts] == [3, 3, 1]
    assert all(part["completion_window"] == "7d" and part["metadata"]["a"] == "b" for part in parts)
    sent = rig.http.get(f"/v1/files/{parts[2]['input_file_id']}/content").json()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{7} What is 7,\nplease?"}]
    assert (sent["custom_id"], sent["body"]["messages"], sent["body"]["seed"]) == ("row-7", messages, 1)
    again = tmp_path / "again.jsonl"
    fetched = run(rig, "results", match[0], "--rows", rows, "--output", again)
    assert fetched.exit_code == 0, fetched.output
    lines = [json.loads(line) for line in again.read_text().splitlines()]
    assert [line["answer"] for line in lines] == [row["answer"] for row in found]
    other = tmp_path / "other.csv"
    other.write_text("id,question\n1,x\n")
    refused = run(rig, "results", match[0], "--rows", other, "--output", tmp_path / "no.csv")
    assert (refused.exit_code, "has fewer rows than were submitted" in refused.stderr) == (1, True)
    assert not (tmp_path / "no.csv").exists()
    table = tmp_path / "table.csv"
    assert run(rig, "results", parts[1]["id"], "--output", table).exit_code == 0
    assert [row["custom_id"] for row in read_csv(table)] == ["row-4", "row-5", "row-6"]


def test_a_log_has_lines_and_nothing_that_only_a_terminal_shows(rig: GatewayRig, rows: Path) -> None:
    done = run(rig, "submit", rows, "--prompt", "{id}", "--max-tokens", "2", "--wait")
    assert done.exit_code == 0, done.output
    assert not [each for each in done.stderr if ord(each) < 32 and each != "\n"], repr(done.stderr)
    lines = done.stderr.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines), done.stderr
    assert lines[-1].endswith("is completed: 7 of 7 (100%)")


def test_where_lines_fail_the_command_that_tells_why_is_named(rig: GatewayRig, rows: Path, tmp_path: Path) -> None:
    options = ("submit", rows, "--prompt", "{id}", "--body", '{"top_k": -9}')
    done = run(rig, *options, "--wait")
    match = JOB.search(done.stderr)
    assert match is not None and done.exit_code == 3, done.output
    assert f"their reasons: slackwater batch results {match[0]} --output FILE\n" in done.stderr
    output = tmp_path / "why.csv"
    assert run(rig, "results", match[0], "--output", output).exit_code == 3
    assert all("top_k" in row["error"] for row in read_csv(output))
    written = run(rig, *options, "--output", tmp_path / "answers.csv")
    assert (written.exit_code, "their reasons" in written.stderr) == (3, False), written.output


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/responses"])
def test_rows_of_stdin_for_the_other_endpoints(rig: GatewayRig, tmp_path: Path, endpoint: str) -> None:
    output = tmp_path / "answers.jsonl"
    options = ("--endpoint", endpoint, "--max-tokens", "3", "--temperature", "0", "--body", '{"ignore_eos": true}')
    done = run(rig, "submit", "-", *options, "--output", output, "--json", stdin="one\n\ntwo\n")
    assert done.exit_code == 0, done.output
    (batch,) = json.loads(done.stdout)["data"]
    assert (batch["endpoint"], batch["usage"]["output_tokens"]) == (endpoint, 6)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["one", "two"]
    assert all(line["answer"] and line["finish_reason"] == "length" and line["error"] is None for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]  # what stdin had is not needed any more


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_rows_become_embeddings(rig: GatewayRig, tmp_path: Path, encoding: str) -> None:
    output, body = tmp_path / "answers.jsonl", json.dumps({"encoding_format": encoding})
    options = ("--endpoint", "/v1/embeddings", "--body", body, "--output", output, "--json")
    done = run(rig, "submit", "-", *options, stdin="one\n\ntwo\n")
    assert done.exit_code == 0, done.output
    (batch,) = json.loads(done.stdout)["data"]
    assert (batch["endpoint"], batch["usage"]["output_tokens"]) == ("/v1/embeddings", 0)
    asked = {"model": batch["model"], "input": ["one", "two"], "encoding_format": encoding}
    online = [each["embedding"] for each in rig.http.post("/v1/embeddings", json=asked).json()["data"]]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["one", "two"]
    assert all(line["finish_reason"] is None and line["error"] is None for line in lines)
    answers = [line["answer"] for line in lines]
    assert answers == online if encoding == "base64" else [json.loads(each) for each in answers] == online


def test_requests_for_embeddings_are_submitted_as_they_are(rig: GatewayRig, tmp_path: Path) -> None:
    """The endpoint is that of their lines."""
    model = rig.http.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "input": "one", "encoding_format": "float"}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    output = tmp_path / "done.jsonl"
    done = run(rig, "submit", "-", "--endpoint", "/v1/embeddings", "--output", output, stdin=json.dumps(line) + "\n")
    assert done.exit_code == 0, done.output
    (found,) = [json.loads(each) for each in output.read_text().splitlines()]
    assert found["response"]["body"]["data"] == rig.http.post("/v1/embeddings", json=body).json()["data"]


def test_a_row_that_fails_says_why_and_the_exit_status_too(rig: GatewayRig, tmp_path: Path) -> None:
    output = tmp_path / "answers.csv"
    stdin = f'{{"text": "short"}}\n{{"text": "{TOO_LONG}"}}\n'
    done = run(rig, "submit", "-", "--prompt", "{text}", "--max-tokens", "2", "--output", output, stdin=stdin)
    assert (done.exit_code, "1 of 2 lines are done, 1 failed" in done.stderr) == (3, True), done.output
    good, bad = read_csv(output)
    assert (bool(good["finish_reason"]), good["error"]) == (True, "")
    assert (bad["answer"], bad["finish_reason"]) == ("", "") and "maximum context length" in bad["error"]


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--prompt", "{answer}"), 1, "rows.csv line 1: no column 'answer'; its columns are id, question"),
        (("--prompt", "{id.real}"), 1, "a field is the name of a column"),
        ((), 2, "the columns of rows.csv are id, question"),
        (("--prompt", "{id}", "--body", "[]"), 2, "no JSON object"),
        (("--prompt", "{id}", "--body", '{"messages": []}'), 2, "messages is not for it to say"),
        (("--prompt", "{id}", "--metadata", "x"), 2, "write KEY=VALUE"),
        (("--prompt", "{id}", "--endpoint", "/v1/completions", "--system", "x"), 2, "has no system message"),
        (("--prompt", "{id}", "--endpoint", "/v1/embeddings", "--max-tokens", "3"), 2, "generates nothing"),
        (("--prompt", "{id}", "--output", "answers.xls"), 1, ".csv, .tsv, .jsonl or .parquet"),
        (("--prompt", "{id}", "--window", "2m"), 2, "completion_window must be"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    rig: GatewayRig, rows: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], status: int, said: str
) -> None:
    monkeypatch.chdir(rows.parent)
    before = [rig.http.get(path).json() for path in ("/v1/batches", "/v1/files")]
    done = run(rig, "submit", rows, *args)
    assert (done.exit_code, said in re.sub(r"[│\s]+", " ", done.stderr)) == (status, True), done.stderr
    assert [rig.http.get(path).json() for path in ("/v1/batches", "/v1/files")] == before


def test_rows_with_the_names_of_answers_are_refused(rig: GatewayRig, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "x"}\n{"q": "y", "error": 1}\n')
    done = run(rig, "submit", rows, "--prompt", "{q}", "--output", tmp_path / "out.csv")
    assert (done.exit_code, "columns of its own with the names error" in done.stderr) == (1, True), done.stderr


def test_lines_that_have_not_run_are_retried_and_all_answers_merged(rig: GatewayRig, tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.txt", tmp_path / "answers.csv"
    rows.write_text("".join(f"number {n}\n" for n in range(400)))
    options = ("--max-tokens", "400", "--body", '{"ignore_eos": true}', "--json")
    batch_id = json.loads(run(rig, "submit", rows, *options).stdout)["data"][0]["id"]
    refused = run(rig, "retry", batch_id)
    assert (refused.exit_code, "wait for its end" in refused.stderr) == (1, True), refused.stderr
    assert (run(rig, "delete", batch_id).exit_code, run(rig, "results", batch_id, "--output", output).exit_code) == (
        1,
        1,
    )
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).request_counts.completed > 0, rig.logs)  # type: ignore[union-attr]
    assert run(rig, "cancel", batch_id).exit_code == 0
    waited = run(rig, "wait", batch_id)
    assert (waited.exit_code, "is cancelled" in waited.stderr) == (6, True), waited.output
    first = run(rig, "results", batch_id, "--rows", rows, "--output", output)
    assert first.exit_code == 6, first.output
    before = read_csv(output)
    assert len(before) == 400 and 0 < sum(bool(row["answer"]) for row in before) < 400
    retried = run(rig, "retry", batch_id, "--rows", rows, "--output", output, "--force", "--json")
    assert retried.exit_code == 0, retried.output
    (new,) = json.loads(retried.stdout)["data"] if '"data"' in retried.stdout else [json.loads(retried.stdout)]
    assert new["metadata"]["slackwater_retry_of"] == batch_id
    assert new["request_counts"]["total"] == sum(not row["answer"] for row in before)
    after = read_csv(output)
    assert [row["text"] for row in after] == [f"number {n}" for n in range(400)]
    assert all(row["answer"] and not row["error"] for row in after)
    kept = [(old["answer"], row["answer"]) for old, row in zip(before, after, strict=True) if old["answer"]]
    assert all(old == row for old, row in kept)
    raw = tmp_path / "raw.jsonl"
    assert run(rig, "results", batch_id, "--retries", "--output", raw).exit_code == 0
    ids = [json.loads(line)["custom_id"] for line in raw.read_text().splitlines()]
    assert ids == [f"row-{n}" for n in range(1, 401)] and not (tmp_path / "raw.errors.jsonl").exists()
    nothing = run(rig, "retry", batch_id, "--json")
    assert (nothing.exit_code, json.loads(nothing.stdout)["data"]) == (0, [])
    assert run(rig, "retry", batch_id).stdout == "every line has an answer: none runs again\n"
    deleted = run(rig, "delete", batch_id, "--files")
    assert deleted.exit_code == 0, deleted.output
    assert rig.http.get(f"/v1/batches/{batch_id}").status_code == 404
    assert [file.id for file in rig.openai.files.list() if batch_id.removeprefix("batch_") in file.id] == []


def test_rows_with_all_the_metadata_that_there_may_be_are_retried(rig: GatewayRig, tmp_path: Path) -> None:
    """Six of 16 are the command's own, and a retry has one more of them."""
    rows = tmp_path / "rows.txt"
    rows.write_text(f"{TOO_LONG}\n")
    own = {f"key-{n}": str(n) for n in range(10)}
    pairs = [word for key, value in own.items() for word in ("--metadata", f"{key}={value}")]
    made = run(rig, "submit", rows, "--max-tokens", "2", "--wait", "--json", *pairs)
    assert made.exit_code == 3, made.output
    (batch,) = json.loads(made.stdout)["data"]
    retried = run(rig, "retry", batch["id"], "--json")
    assert retried.exit_code == 0, retried.output
    metadata = json.loads(retried.stdout)["metadata"]
    assert (metadata["slackwater_retry_of"], len(metadata), metadata.items() >= own.items()) == (batch["id"], 16, True)


def test_a_batch_whose_input_was_refused_is_not_retried(rig: GatewayRig, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a"}\n')
    done = run(rig, "submit", source, "--wait", "--json")
    assert done.exit_code == 4, done.output
    batch_id = json.loads(done.stdout)["id"]
    got = run(rig, "get", batch_id)
    assert (got.exit_code, f"batch {batch_id} is failed" in got.stderr, "line 1: " in got.stderr) == (0, True, True)
    refused = run(rig, "retry", batch_id)
    assert (refused.exit_code, "would fail again" in refused.stderr) == (1, True), refused.stderr


@pytest.mark.slow
def test_what_a_kill_left_out_is_submitted_with_the_jobs_id(rig: GatewayRig, tmp_path: Path) -> None:
    """And nothing twice: each row is in one batch, whichever of the commands has sent it."""
    rows, output = tmp_path / "rows.txt", tmp_path / "answers.csv"
    rows.write_text("".join(f"number {n}\n" for n in range(300)))
    args = ["batch", "submit", str(rows), "--max-tokens", "2", "--batch-rows", "5", "--url", rig.url]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    submitting = subprocess.Popen([*SLACKWATER, *args], stderr=subprocess.PIPE, text=True, env=environ)
    assert submitting.stderr is not None
    job_id = next(match[0] for line in submitting.stderr if (match := JOB.search(line)))
    wait_until(lambda: len(batches_in(rig, job_id)) >= 3, rig.logs)
    submitting.kill()
    submitting.wait()
    there = len(batches_in(rig, job_id))
    assert there < 60
    unfinished = run(rig, "wait", job_id)
    assert (unfinished.exit_code, f"--resume {job_id}" in unfinished.stderr) == (1, True), unfinished.stderr
    other = run(rig, "submit", rows, "--max-tokens", "3", "--batch-rows", "5", "--resume", job_id)
    assert (other.exit_code, "are not those of" in other.stderr) == (1, True), other.stderr
    for no_job in ("foo", "job_zz", job_id[:-1]):
        refused = run(rig, *args[1:-2], "--resume", no_job)
        assert (refused.exit_code, "is no id of a job" in refused.stderr) == (2, True), refused.stderr
    done = run(rig, *args[1:-2], "--resume", job_id, "--output", output)
    assert done.exit_code == 0, done.output
    assert [row["text"] for row in read_csv(output)] == [f"number {n}" for n in range(300)]
    assert all(row["finish_reason"] and not row["error"] for row in read_csv(output))
    parts = batches_in(rig, job_id)
    assert [part["metadata"]["slackwater_part"] for part in parts] == [str(n) for n in range(1, 61)]


@pytest.mark.slow
def test_ctrl_c_leaves_the_batch_and_says_how_to_go_on(rig: GatewayRig, tmp_path: Path) -> None:
    output = tmp_path / "answers.csv"
    args = ["batch", "submit", "-", "--max-tokens", "400", "--body", '{"ignore_eos": true}', "--output", str(output)]
    process = subprocess.Popen(
        [*SLACKWATER, *args, "--url", rig.url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write("".join(f"number {n}\n" for n in range(400)))
    process.stdin.close()
    said = next(line for line in process.stderr if "in_progress" in line)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    job_id = JOB.search(rest)
    assert job_id is not None and "batch results" in rest, (said, rest)
    waited = run(rig, "wait", job_id[0])
    assert waited.exit_code == 0, waited.output
    kept = tmp_path / "answers.csv.stdin"
    done = run(rig, "results", job_id[0], "--output", output, "--rows", kept, "--format", "text")
    assert done.exit_code == 0, done.output
    assert [row["text"] for row in read_csv(output)] == [f"number {n}" for n in range(400)]


@pytest.mark.slow
def test_ctrl_c_names_no_copy_of_stdin_that_is_gone(rig: GatewayRig, tmp_path: Path) -> None:
    args = ["batch", "submit", "-", "--max-tokens", "400", "--body", '{"ignore_eos": true}', "--wait"]
    process = subprocess.Popen(
        [*SLACKWATER, *args, "--url", rig.url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write("".join(f"number {n}\n" for n in range(400)))
    process.stdin.close()
    next(line for line in process.stderr if "in_progress" in line)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    job_id = JOB.search(rest)
    assert job_id is not None and rest.endswith(f"slackwater batch results {job_id[0]} --output FILE\n"), rest
    assert run(rig, "wait", job_id[0]).exit_code == 0
    answers = tmp_path / "answers.csv"
    assert run(rig, "results", job_id[0], "--output", answers).exit_code == 0
    assert len(read_csv(answers)) == 400
