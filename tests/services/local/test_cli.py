"""The command line: usage errors, failures, and the client commands against a real HTTP server."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.server import ApiClient
from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.data_dir import DataDir
from services.local.stack.machine import free_port
from shared.errors import ApiError, UnavailableApiError
from tests.programs import run_slackwater

SLACKWATER = (sys.executable, "-c", "from services.local.cli import main; main()")
BATCH = {
    "id": "batch_1",
    "object": "batch",
    "endpoint": "/v1/completions",
    "status": "completed",
    "created_at": 1_700_000_000,
    "request_counts": {"total": 2, "completed": 1, "failed": 1},
    "output_file_id": "file-out",
    "error_file_id": "file-err",
}
FILES = {"file-out": b'{"custom_id": "a"}\n', "file-err": b'{"custom_id": "b"}\n'}


class OpenAIHandler(BaseHTTPRequestHandler):
    """The wire of an OpenAI-compatible server, as far as the CLI goes; every request body is kept."""

    protocol_version = "HTTP/1.1"
    bodies: list[tuple[str, bytes]]

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "served-model"}]})
        elif path == "/v1/batches":
            self._json(200, {"object": "list", "data": [BATCH], "has_more": False})
        elif path == "/v1/batches/batch_1":
            self._json(200, BATCH)
        elif path == "/v1/batches/batch_stopped":
            counts = {"total": 5000, "completed": 285, "failed": 2}
            self._json(200, BATCH | {"id": "batch_stopped", "status": "cancelled", "request_counts": counts})
        elif path == "/v1/batches/batch_whole":
            counts = {"total": 1, "completed": 1, "failed": 0}
            self._json(200, BATCH | {"id": "batch_whole", "request_counts": counts, "error_file_id": None})
        elif path == "/v1/batches/batch_lost":
            self._json(200, BATCH | {"id": "batch_lost", "output_file_id": "file-gone"})
        elif path == "/v1/batches/batch_odd":
            self._json(200, {"status": "ok"})
        elif path == "/v1/batches/batch_list":
            self._send(200, b"[]", "application/json")
        elif path == "/v1/batches/batch_bad":
            errors = {"object": "list", "data": [{"code": "invalid_json", "message": "not JSON", "line": 7}]}
            self._json(200, BATCH | {"id": "batch_bad", "status": "failed", "errors": errors, "output_file_id": None})
        elif path.endswith("/content") and "file-gone" not in path:
            self._send(200, FILES[path.split("/")[3]], "application/octet-stream")
        elif path == "/v1/batches/batch_moved":
            self._send(308, b"", "text/html", Location=f"https://llm.example{path}")
        elif path == "/broken":
            self._send(500, b"<html>", "text/html")
        else:
            self._json(404, {"error": {"message": f"no such thing: {path}", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, body))
        if b"over_quota" in body:
            refused = {"message": "You exceeded your current quota", "type": "insufficient_quota"}
            self._send(429, json.dumps({"error": refused}).encode(), "application/json", **{"x-should-retry": "false"})
        elif self.path == "/v1/files":
            wanted = re.search(rb"batch_[a-z]+", body)  # in the file, the batch that it is to become
            self._json(200, {"id": wanted[0].decode() if wanted else "file-in", "object": "file"})
        elif self.path == "/v1/batches":
            file_id = json.loads(body)["input_file_id"]
            batch_id = file_id if file_id.startswith("batch_") else "batch_1"
            self._json(200, BATCH | {"id": batch_id, "status": "validating"})
        elif self.path == "/v1/batches/batch_1/cancel":
            self._json(200, BATCH | {"status": "cancelling"})
        elif self.path == "/v1/chat/completions":
            self._stream(json.loads(body))

    def _stream(self, request: dict[str, Any]) -> None:
        question = request["messages"][-1]["content"]
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"content": word}}]} for word in ("You said: ", question)
        ]
        if question.startswith("think"):
            thoughts = [{"choices": [{"delta": {name: "Hm."}}]} for name in ("reasoning", "reasoning_content")]
            events = [*thoughts, *(events if question == "think and say" else [])]
        events += [{"choices": [{"delta": {}, "finish_reason": "length" if "cut" in question else "stop"}]}]
        if question == "fail":
            events.append({"error": {"message": "the executor is gone"}})
        lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events] + [
            ": a comment\n\n",
            "data: [DONE]\n\n",
        ]
        self._send(200, "".join(lines).encode(), "text/event-stream")

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        handler = type("Handler", (OpenAIHandler,), {"bodies": self.bodies})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def encrypt(self, certificate: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = self.url.replace("http", "https")

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def slackwater(*args: str, stdin: str = "") -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of the command, run in this process."""
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "SLACKWATER_URL": None}).invoke(
        app, args, input=stdin
    )
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command() -> None:
    shown = subprocess.run([*SLACKWATER, "--help"], capture_output=True, text=True, check=True).stdout
    for command in ("up", "status", "top", "doctor", "chat", "batch", "config", "replay", "predict", "version"):
        assert f" {command} " in shown


@pytest.mark.parametrize("group", ["batch", "bus", "config", "data", "key", "service"])
def test_a_group_of_commands_says_what_it_is_for_and_has_no_options_of_its_own(group: str) -> None:
    _, listed, _ = slackwater("--help")
    status, shown, _ = slackwater(group, "--help")
    (what,) = (line.split(maxsplit=2)[2].strip(" │") for line in listed.splitlines() if line.startswith(f"│ {group} "))
    assert (status, what in shown, "completion" in shown) == (0, True, False)


def test_help_is_broken_where_the_terminal_ends() -> None:
    """Not where the line of its source does."""
    _, shown, _ = slackwater("replay", "--help")
    assert "latency counts from those times. The API key, where one is needed, is read from SLACKWATER_API_KEY" in shown
    _, shown, _ = slackwater("key", "--help")
    assert "valid at once, whether the stack runs or not. What is not named has no limit" in shown


def test_rows_without_a_template_are_refused_with_one(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Why?"}\n')
    status, _, said = slackwater("batch", "submit", str(tmp_path / "rows.jsonl"), "--url", "http://127.0.0.1:1")
    assert status == 2 and "has rows, no requests: say what to ask of each, as 'Summarize: {text}'" in said


def test_help_loads_no_engine_and_no_client() -> None:
    code = (
        "import contextlib, io, sys; from services.local.cli import command\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): command(['--help'])\n"
        "print([name for name in ('torch', 'transformers', 'fastapi', 'httpx', 'nats') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_version_is_that_of_the_package() -> None:
    status, stdout, _ = slackwater("version", "--json")
    assert status == 0
    number = json.loads(stdout)["version"]
    assert slackwater("version")[1] == slackwater("--version")[1] == f"slackwater {number}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("up", "--engine", "tpu"), "unknown engine 'tpu'; known: torch, vllm, sim"),
        (("up", "--preset", "fair"), "unknown preset 'fair'; known: hygen, sarathi++, hygen-star, online-only"),
        (("up", "--kv-sharing", "fifo"), "unknown kv sharing 'fifo'; known: recompute, bidirectional, keep-resident"),
        (("up", "--online-order", "lifo"), "unknown online order 'lifo'; known: fcfs, vtc"),
        (("up", "--log-level", "loud"), "unknown log level 'loud'; known: debug, info, warning, error"),
        (("up", "--port", "70000"), "Invalid value for '--port'"),
        (("up", "--executors", "0"), "Invalid value for '--executors'"),
        (("up", "--utility-ratio", "1.5"), "Invalid value for '--utility-ratio'"),
        (("up", "--budget-ms", "5", "--slo", "tbt_p99<=9ms"), "one of --budget-ms and --slo"),
        (("up", "--slo", "tbt_p42<=9ms"), "unknown statistic 'p42'; known: mean"),
        (("up", "--slo", "fast"), "write METRIC_STATISTIC<=BOUND"),
        (("up", "--slo", "tbt_p99<=9ms", "--preset", "sarathi++"), "preset sarathi++ has no latency budget"),
        (("up", "--slo", "tbt_p99<=1.1x", "--preset", "bros"), "deadlines need bounds in ms on ttft, tpot or tbt"),
        (("up", "--online-order", "vtc", "--preset", "bros"), "packing deadline orders online requests itself"),
        (("batch", "submit", "no-such-file.jsonl"), "'no-such-file.jsonl' does not exist"),
        (("batch", "submit", __file__, "--endpoint", "/v1/moderations"), "unknown endpoint '/v1/moderations'"),
        (("batch", "get"), "Missing argument 'ID'"),
        (("serve",), "No such command 'serve'"),
    ],
)
def test_usage_errors_say_what_to_write(args: tuple[str, ...], message: str) -> None:
    status, stdout, stderr = slackwater(*args)
    assert status == 2
    assert message in stderr
    assert stdout == ""


def test_a_taken_port_is_a_failure_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, stdout, stderr = slackwater("up", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert status == 1
    assert stdout == ""
    assert stderr == (
        f"error: cannot listen on 127.0.0.1 port {port} (Address already in use); choose another with --port\n"
    )


def test_who_starts_a_stack_twice_is_told_so_and_of_no_other_port(tmp_path: Path) -> None:
    with DataDir(tmp_path).locked(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, stderr = slackwater("up", "--port", port, "--data-dir", str(tmp_path))
    assert status == 1 and stderr.startswith(f"error: another stack (pid {os.getpid()}) uses {tmp_path}; stop it")


def up(data_dir: Path, *args: str, **environ: str) -> tuple[int, str]:
    """(exit status, stderr) of a ``slackwater up`` that cannot start."""
    command = ("up", "--config", "", "--port", str(free_port()), "--data-dir", str(data_dir), *args)
    environ = {"COLUMNS": "200", **os.environ, **environ}
    done = run_slackwater(*command, env=environ, cwd=data_dir.parent)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_model_that_is_not_there_is_named_without_a_traceback(tmp_path: Path) -> None:
    for model, looked_for in (
        ("./nope", f"no model './nope': there is no folder {tmp_path / 'nope'}"),
        ("no--such/model", "'no--such/model' is neither a folder nor a Hugging Face hub id"),
    ):
        status, stderr = up(tmp_path / "data", "--model", model)
        assert (status, looked_for in stderr, "Traceback" in stderr) == (1, True, False), stderr
    assert "./nope" not in stderr  # nothing of the run before


def test_a_quantization_that_the_engine_cannot_run_is_named(tmp_path: Path, model_folder: Path) -> None:
    quantized = tmp_path / "quantized"
    shutil.copytree(model_folder, quantized, copy_function=os.link)
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").unlink()
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "q9"}}))
    said = f"{quantized} is quantized with q9, which the torch engine cannot run here"
    status, stderr = up(tmp_path / "data", "--model", str(quantized))
    assert (status, said in stderr) == (1, True), stderr
    asked = ("doctor", "--config", "", "--json", "--data-dir", str(tmp_path / "data"), "--model", str(quantized))
    for engine, state in (("torch", "failed"), ("sim", "ok")):
        checks = json.loads(slackwater(*asked, "--engine", engine)[1])["checks"]
        (check,) = (each for each in checks if each["name"] == "model")
        assert (check["state"], said in check["found"]) == (state, state == "failed")


def test_where_others_can_connect_nothing_starts_without_a_key(tmp_path: Path) -> None:
    status, stderr = up(tmp_path / "data", "--engine", "sim", "--host", "0.0.0.0")
    assert status == 2
    assert "error: clients need an API key where the gateway listens on '0.0.0.0', and there is none" in stderr
    assert "slackwater key create NAME" in stderr and "SLACKWATER_REQUIRE_KEYS=never" in stderr
    assert [log.stem for log in (tmp_path / "data" / "logs").iterdir()] == ["nats-server"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_what_cannot_be_written_is_a_failure_with_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run([*SLACKWATER, "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (failed.returncode, failed.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_was_closed_before_is_none_to_fail_for(server: Server, closed: str) -> None:
    listing = (*SLACKWATER, "batch", "list", "--url", server.url)
    ran = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *listing], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ("batch_1" in ran.stdout) is (closed != ">&-")


def test_errors_that_nobody_is_to_see_are_not_among_the_results(tmp_path: Path) -> None:
    failing = (*SLACKWATER, "status", "--json", "--data-dir", str(tmp_path))
    ran = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *failing], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")


def test_status_without_a_stack_is_a_failure(tmp_path: Path) -> None:
    status, stdout, stderr = slackwater("status", "--json", "--data-dir", str(tmp_path))
    assert (status, stdout) == (1, "")
    assert stderr == f"error: no stack runs in {tmp_path}; start one with: slackwater up\n"


def test_a_client_command_without_a_server_is_a_failure(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for command in (("chat", "hello"), ("batch", "list"), ("batch", "cancel", "batch_1")):
        status, stdout, stderr = slackwater(*command, "--url", url)
        assert (status, stdout) == (1, "")
        assert stderr.startswith(f"error: nothing answers at {url}; start a stack")


def test_a_certificate_that_is_not_trusted_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BusFolder(tmp_path).ensure(["localhost", "127.0.0.1"])
    server.encrypt(tmp_path / "server.pem", tmp_path / "server-key.pem")
    status, _, stderr = slackwater("batch", "wait", "batch_whole", "--url", server.url)
    assert (status, stderr.count("error:"), "waiting, since" in stderr) == (1, 1, False)
    assert f"error: the certificate of {server.url} is not trusted: " in stderr
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert slackwater("batch", "wait", "batch_whole", "--url", server.url)[0] == 0
    status, _, stderr = slackwater("batch", "list", "--url", f"https://127.0.0.1:{free_port()}")
    assert (status, "error: nothing answers at https://" in stderr) == (1, True)


@pytest.mark.parametrize("url", ["", "http://", "http://[::1", "localhost:80o0"])
def test_a_url_that_is_none_is_a_usage_error(url: str) -> None:
    for command in (("batch", "list"), ("status",), ("chat", "hi"), ("replay", "--online", __file__)):
        status, stdout, stderr = slackwater(*command, "--url", url)
        assert (status, stdout) == (2, "")
        assert stderr == f"error: {url!r} is no URL of a server; write http://HOST:PORT\n"


@pytest.mark.parametrize("key", ["sk-“quoted”", "sk-one\nsk-two"])
def test_a_key_that_no_header_can_carry_is_named_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SLACKWATER_API_KEY", key)
    status, stdout, stderr = slackwater("batch", "list", "--url", server.url)
    assert (status, stdout, "sk-" in stderr) == (2, "", False)
    assert stderr.startswith("error: SLACKWATER_API_KEY has ")


def test_nobody_is_told_to_wait_again_for_what_is_not_there(server: Server) -> None:
    status, stdout, stderr = slackwater("batch", "wait", "batch_unknown", "--url", server.url)
    assert (status, stdout, stderr.count("\n"), "wait again" in stderr) == (1, "", 1, False), stderr


def test_json_that_is_nothing_of_the_api_is_told(server: Server, tmp_path: Path) -> None:
    for batch_id, what in (("batch_odd", "JSON without id"), ("batch_list", "JSON that is no object")):
        for command in (("get",), ("wait",), ("cancel",), ("results", "--output", str(tmp_path / "out.jsonl"))):
            status, _, stderr = slackwater("batch", command[0], batch_id, *command[1:], "--url", server.url)
            said = f"{server.url} answered GET /v1/batches/{batch_id} with {what}; is it an OpenAI-compatible server?"
            assert (status, said in stderr) == (1, True)


def test_chat_streams_one_answer(server: Server) -> None:
    assert slackwater("chat", "hello", "--url", server.url, "--temperature", "0.5", "--system", "Be brief.") == (
        0,
        "You said: hello\n",
        "",
    )
    path, body = server.bodies[-1]
    assert path == "/v1/chat/completions"
    assert json.loads(body) == {
        "model": "served-model",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "max_tokens": 512,
        "stream": True,
    }


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_chat_shows_whatever_may_end_a_line(server: Server, end: str) -> None:
    assert slackwater("chat", f"one{end}two", "--url", server.url)[:2] == (0, f"You said: one{end}two\n")


def test_chat_keeps_the_conversation_until_the_end_of_input(server: Server) -> None:
    status, stdout, _ = slackwater("chat", "--url", server.url, stdin="one\n\ntwo\n")
    assert (status, stdout) == (0, "You said: one\nYou said: two\n")
    assert json.loads(server.bodies[-1][1])["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "You said: one"},
        {"role": "user", "content": "two"},
    ]


@pytest.mark.parametrize(
    ("message", "shown", "note"),
    [
        ("cut", "You said: cut", "(cut at 512 tokens; --max-tokens allows more)\n"),
        ("think, cut", "", "(cut at 512 tokens while the model was thinking; --max-tokens allows more)\n"),
        ("think", "", "(the model thought, and did not answer)\n"),
        ("think and say", "You said: think and say", ""),
    ],
)
def test_an_answer_that_is_cut_or_missing_is_told_of(server: Server, message: str, shown: str, note: str) -> None:
    """It looked like a whole one, or like an empty one."""
    assert slackwater("chat", message, "--url", server.url) == (0, f"{shown}\n", note)


def test_an_error_inside_a_stream_is_a_failure(server: Server) -> None:
    status, stdout, stderr = slackwater("chat", "fail", "--url", server.url)
    assert (status, stdout, stderr) == (1, "You said: fail\n", "error: the executor is gone\n")


def submit(server: Server, batch_id: str, output: Path, *args: str) -> tuple[int, str, str]:
    """Of a file that becomes this batch at the server."""
    source = output.with_name("in.jsonl")
    source.write_text(json.dumps({"custom_id": batch_id, "method": "POST", "url": "/v1/completions", "body": {}}))
    return slackwater("batch", "submit", str(source), "--output", str(output), *args, "--url", server.url)


def test_submit_takes_the_endpoint_from_the_file_and_fetches_both_outputs(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    status, stdout, stderr = submit(server, "a", output, "--json")
    assert status == 3
    assert stderr.endswith("error: batch batch_1 is completed: 1 of 2 lines are done, 1 failed\n")
    assert json.loads(stdout) == BATCH
    assert json.loads(dict(server.bodies)["/v1/batches"]) == {
        "input_file_id": "file-in",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    assert b'filename="in.jsonl"' in dict(server.bodies)["/v1/files"]
    assert output.read_bytes() == FILES["file-out"]
    assert (tmp_path / "out.errors.jsonl").read_bytes() == FILES["file-err"]


@pytest.mark.parametrize(
    ("batch_id", "exit_status", "said"),
    [
        ("batch_whole", 0, ""),
        ("batch_bad", 4, "error: batch batch_bad is failed: 1 of 2 lines are done, 1 failed\n  line 7: not JSON\n"),
        ("batch_stopped", 6, "error: batch batch_stopped is cancelled: 285 of 5,000 lines are done, 2 failed, 4,713"),
    ],
)
def test_the_exit_status_says_how_a_batch_ended(
    server: Server, tmp_path: Path, batch_id: str, exit_status: int, said: str
) -> None:
    status, _, stderr = submit(server, batch_id, tmp_path / "out.jsonl")
    assert (status, said in stderr, "error" in stderr) == (exit_status, True, bool(said))


def test_where_results_cannot_be_written_nothing_is_sent(server: Server, tmp_path: Path) -> None:
    there, other = tmp_path / "there.jsonl", tmp_path / "other.errors.jsonl"
    for path in (there, other):
        path.write_text("precious\n")
    nowhere = tmp_path / "no" / "such"
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    for output, problem in (
        (nowhere, f"there is no folder {tmp_path / 'no'}"),
        (there, f"cannot write {there}: it is there already; replace it with --force"),
        (tmp_path / "other.jsonl", f"cannot write {other}: it is there already"),
    ):
        for command in (("submit", str(source)), ("get", "batch_1")):
            args = ("batch", *command, "--output", str(output), "--url", server.url)
            status, stdout, stderr = slackwater(*args)
            said = " ".join(stderr.replace("│", "").split())
            assert (status, stdout, problem in said) == (2, "", True), stderr
    assert (server.bodies, there.read_text(), other.read_text()) == ([], "precious\n", "precious\n")
    assert submit(server, "batch_whole", there, "--force")[0] == 0
    assert there.read_bytes() == FILES["file-out"]


def test_results_do_not_go_to_a_file_that_looks_like_stdout(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"custom_id": "batch_whole"}\n')
    for command in (("submit", "in.jsonl"), ("submit", "-"), ("get", "batch_1"), ("results", "batch_1")):
        status, stdout, stderr = slackwater("batch", *command, "--output", "-", "--url", server.url)
        assert (status, stdout, "name a file; results do not go to stdout" in stderr) == (2, "", True), stderr
    assert (server.bodies, [path.name for path in tmp_path.iterdir()]) == ([], ["in.jsonl"])


@pytest.mark.parametrize(("source", "output"), [("in.jsonl", "in.jsonl"), ("in.errors.jsonl", "in.jsonl")])
def test_results_never_take_the_place_of_the_requests(server: Server, tmp_path: Path, source: str, output: str) -> None:
    requests = tmp_path / source
    requests.write_text('{"custom_id": "batch_whole"}\n')
    args = ("batch", "submit", str(requests), "--output", str(tmp_path / output), "--force", "--url", server.url)
    status, _, stderr = slackwater(*args)
    assert (status, "is what is submitted; name another file" in " ".join(stderr.replace("│", "").split())) == (2, True)
    assert (server.bodies, requests.read_text()) == ([], '{"custom_id": "batch_whole"}\n')


def test_a_file_whose_name_is_no_text_is_submitted(server: Server, tmp_path: Path) -> None:
    requests = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    requests.write_text('{"custom_id": "batch_whole"}\n')
    assert slackwater("batch", "submit", str(requests), "--url", server.url)[0] == 0
    assert 'filename="caf\ufffd.jsonl"'.encode() in server.bodies[0][1]


def test_results_that_cannot_be_fetched_are_not_lost(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("of an earlier run\n")
    status, _, stderr = submit(server, "batch_lost", output, "--force")
    assert status == 1
    assert stderr.endswith("results: slackwater batch get batch_lost --output FILE\n")
    assert output.read_text() == "of an earlier run\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    status, _, stderr = slackwater("batch", "get", "batch_whole", "--output", "/dev/full", "--url", server.url)
    assert (status, "error: cannot write /dev/full: No space left on device\n" in stderr) == (1, True)
    assert stderr.endswith("results: slackwater batch get batch_whole --output FILE\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_results_are_written_though_nothing_can_be_said_of_them(server: Server, tmp_path: Path) -> None:
    output, source = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "batch_whole"}\n')
    submission = (*SLACKWATER, "batch", "submit", str(source), "--output", str(output), "--url", server.url)
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(submission, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "error: [Errno 28] No space left on device")
    assert output.read_bytes() == FILES["file-out"]


def test_batches_are_listed_shown_and_cancelled(server: Server, tmp_path: Path) -> None:
    assert json.loads(slackwater("batch", "list", "--json", "--url", server.url)[1])["data"] == [BATCH]
    narrow = CliRunner(env={"COLUMNS": "40", "TERM": "dumb"}).invoke(app, ["batch", "list", "--url", server.url])
    assert "batch_1 " in narrow.stdout
    row = slackwater("batch", "list", "--url", server.url)[1].splitlines()[1].split()
    assert row[:7] == ["batch_1", "completed", "1", "1", "0", "2", "/v1/completions"]
    cancelled = slackwater("batch", "cancel", "batch_1", "--json", "--url", server.url)[1]
    assert json.loads(cancelled)["status"] == "cancelling"
    output = tmp_path / "results.jsonl"
    assert slackwater("batch", "get", "batch_1", "--output", str(output), "--url", server.url)[0] == 0
    assert output.read_bytes() == FILES["file-out"]


def test_the_servers_own_words_are_shown(server: Server) -> None:
    status, _, stderr = slackwater("batch", "get", "batch_9", "--url", server.url)
    assert (status, stderr) == (1, "error: no such thing: /v1/batches/batch_9\n")
    status, _, stderr = slackwater("batch", "get", "batch_moved", "--url", server.url)
    assert status == 1
    assert stderr.endswith("/batch_moved answered 308, and leads to https://llm.example/v1/batches/batch_moved\n")
    with ApiClient(server.url) as client, pytest.raises(ApiError, match="/broken answered 500"):
        client.get("/broken")


def test_a_quota_that_is_used_up_is_not_waited_for(server: Server, tmp_path: Path) -> None:
    """Nothing changes while it is, and the server says so."""
    requests = tmp_path / "in.jsonl"
    requests.write_text('{"custom_id": "over_quota"}\n')
    status, _, stderr = slackwater("batch", "submit", str(requests), "--url", server.url)
    assert (status, stderr.splitlines()[-1], len(server.bodies)) == (1, "error: You exceeded your current quota", 1)


def test_a_server_that_answers_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be asked again, as who waits for a batch does."""
    monkeypatch.setattr("services.local.commands.server.ANSWER_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with ApiClient(url) as client:
            for ask in (client.get, client.post, client.delete):
                with pytest.raises(UnavailableApiError, match="timed out"):
                    ask("/v1/batches/batch_1")
