"""A real HTTP server that speaks the OpenAI API and does what a test tells it: delays, stalls, refusals, batches."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse


@dataclass
class OpenAIServer:
    """What the server does, and what it saw. ``gate`` holds all answers back while it is cleared."""

    url: str = ""
    gap_s: float = 0.002
    takes_token_ids: bool = True
    takes_ignore_eos: bool = True
    has_completions: bool = True
    has_batches: bool = True
    live_usage: bool = True
    batch_lines_per_s: float = 200.0
    batch_lines_done: int | None = None  # of each batch, whatever the time
    refused_prompts: tuple[str, ...] = ()  # lines of batches that fail at once
    fail_with: int | None = None
    refusal: Callable[[], str] = lambda: "out of order"
    refuses_for_good: bool = False  # and says so
    longest: int | None = None  # answer, whatever is asked
    answers_instead: str | None = None  # of a stream
    breaks_with: str | None = None  # what streams say instead of all but their first token
    thinks: bool = False  # in chats, before it answers
    failing_probes: int = 0  # so many requests for one token fail
    failing_requests: int = 0  # so many of the others fail
    failing_lists: int = 0  # of batches
    failing_polls: int = 0  # so many looks at a batch fail
    failing_cancels: int = 0
    failing_creations: int = 0  # of batches
    loses_creations: bool = False  # batches are created, and nobody is told
    refuses_batches: bool = False  # once their input is read
    polls_to_cancel: int = 0  # looks at a batch that is being cancelled before it is
    deletes_files: bool = True
    served: tuple[str, ...] = ("tiny",)  # models
    max_model_len: int | None = 4096
    keeps_to_context: bool = False  # prompts and answers that are longer are refused
    count_text: Callable[[str], int] = lambda text: 2 * len(text.split())  # its tokens
    api_key: str | None = None  # refuses all who do not send it
    busy_per_s: float | None = None
    generated_per_s: float | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    creating: asyncio.Event = field(default_factory=asyncio.Event)  # holds the answers to created batches back
    bodies: list[dict[str, Any]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    max_answered: int | None = None  # of those after the probes; others are refused
    num_refused: int = 0
    polls: Counter[str] = field(default_factory=Counter)  # by batch
    cancels: Counter[str] = field(default_factory=Counter)
    num_active: int = 0
    max_active: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.gate.set()
        self.creating.set()

    def enter(self, step: int) -> None:
        """A request came (1) or left (-1)."""
        self.num_active += step
        self.max_active = max(self.max_active, self.num_active)
        self.changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state, which changes when a request comes, leaves or is refused."""
        async with asyncio.timeout(60):
            while not reached():
                self.changed.clear()
                await self.changed.wait()

    @property
    def trace_bodies(self) -> list[dict[str, Any]]:
        """What came after the probes."""
        return [body for body in self.bodies if body["max_tokens"] > 1]


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status, headers)


def letters_per_three(text: str) -> int:
    """As tokens of words are, of which long ones have more."""
    return sum(1 + len(word) // 3 for word in text.split())


def count_prompt(server: OpenAIServer, body: dict[str, Any]) -> int:
    """Token ids count one each; a word of text counts two, unless the test says otherwise, and a chat adds ten for its
    template."""
    if "messages" in body:
        return 10 + server.count_text(body["messages"][0]["content"])
    prompt = body["prompt"]
    return len(prompt) if isinstance(prompt, list) else server.count_text(prompt)


async def answer(server: OpenAIServer, body: dict[str, Any], chat: bool) -> AsyncIterator[str]:
    server.enter(1)
    try:
        await server.gate.wait()
        count = min(body["max_tokens"], server.longest or body["max_tokens"])
        for position in range(count):
            await asyncio.sleep(server.gap_s)
            if position and server.breaks_with is not None:
                yield f"data: {json.dumps({'error': {'message': server.breaks_with}})}\n\ndata: [DONE]\n\n"
                return
            text = f" {position}"
            last = "length" if position + 1 == count else None
            said = "reasoning" if server.thinks and last is None else "content"
            part = {"delta": {said: text}} if chat else {"text": text}
            yield f"data: {json.dumps({'choices': [{'index': 0, 'finish_reason': last, **part}]})}\n\n"
        usage = {"prompt_tokens": count_prompt(server, body), "completion_tokens": count}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
    finally:
        server.enter(-1)


def advance(server: OpenAIServer, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as it is by now: lines finish at a steady rate, or as the test says."""
    if server.refuses_batches:
        return {"id": batch["id"], "status": "failed", "errors": {"data": [{"message": "no such model"}]}}
    lines = [line for line in batch["lines"] if line["body"].get("prompt") not in server.refused_prompts]
    refused = len(batch["lines"]) - len(lines)
    if batch["status"] in ("validating", "in_progress"):
        by_rate = int((time.perf_counter() - batch["began_s"]) * server.batch_lines_per_s)
        done = min(len(lines), by_rate if server.batch_lines_done is None else server.batch_lines_done)
        batch["status"] = "completed" if done == len(lines) else "in_progress"
        batch["done"] = done
    done_lines = lines[: batch["done"]]
    usage = {
        "input_tokens": sum(count_prompt(server, line["body"]) for line in done_lines),
        "output_tokens": sum(line["body"]["max_tokens"] for line in done_lines),
    }
    shown = {key: batch[key] for key in ("id", "status")} | {
        "request_counts": {"total": len(batch["lines"]), "completed": batch["done"], "failed": refused},
        "usage": usage if server.live_usage else None,
        "output_file_id": None,
    }
    if batch["status"] in ("completed", "cancelled"):
        shown["output_file_id"] = f"{batch['id']}-output"
        if not batch["written"]:
            batch["written"] = True
            server.files[shown["output_file_id"]] = output_file(server, batch)
            server.files[f"{batch['id']}-error"] = error_file(batch, refused)
        shown["error_file_id"] = f"{batch['id']}-error"
    return shown


def output_file(server: OpenAIServer, batch: dict[str, Any]) -> bytes:
    lines = []
    for line in batch["lines"][: batch["done"]]:
        usage = {"prompt_tokens": count_prompt(server, line["body"]), "completion_tokens": line["body"]["max_tokens"]}
        body = {"usage": usage}
        lines.append(json.dumps({"custom_id": line["custom_id"], "response": {"status_code": 200, "body": body}}))
    return "\n".join(lines).encode()


def error_file(batch: dict[str, Any], refused: int) -> bytes:
    """Each refusal has numbers of its own; the last line did not run."""
    lines: list[dict[str, Any]] = [
        {"response": {"status_code": 400, "body": {"error": {"message": f"{index} tokens too many"}}}, "error": None}
        for index in range(refused)
    ]
    lines.append({"response": None, "error": {"code": "batch_cancelled", "message": "did not run"}})
    return "\n".join(map(json.dumps, lines)).encode()


def make_app(server: OpenAIServer) -> FastAPI:
    async def check_key(request: Request) -> None:
        if server.api_key is not None and request.headers.get("authorization") != f"Bearer {server.api_key}":
            raise HTTPException(401)

    app = FastAPI(dependencies=[Depends(check_key)])
    began_s = time.perf_counter()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        cards = [{"id": id, "object": "model", "max_model_len": server.max_model_len} for id in server.served]
        return {"object": "list", "data": cards}

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        if not server.has_completions:
            return refusal(404, "no such path")
        if isinstance(body["prompt"], list) and not server.takes_token_ids:
            return refusal(400, "prompt must be a string")
        return await respond(body, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await respond(await request.json(), chat=True)

    async def respond(body: dict[str, Any], chat: bool) -> Response:
        if body.get("ignore_eos") and not server.takes_ignore_eos:
            return refusal(400, "unknown parameter: ignore_eos")
        if body["max_tokens"] == 1 and server.failing_probes > 0:
            server.failing_probes -= 1
            return refusal(503, "restarting")
        if body["max_tokens"] > 1 and server.failing_requests > 0:
            server.failing_requests -= 1
            return refusal(500, "out of order | for now")
        if server.keeps_to_context and count_prompt(server, body) + body["max_tokens"] > (server.max_model_len or 0):
            return refusal(400, "longer than the context")
        is_over = server.max_answered is not None and len(server.trace_bodies) >= server.max_answered
        if body["max_tokens"] > 1 and (is_over or server.fail_with is not None):
            server.num_refused += 1
            server.changed.set()
            headers = {"x-should-retry": "false"} if server.refuses_for_good else None
            return refusal(server.fail_with or 500, server.refusal(), headers)
        if server.answers_instead is not None:
            return Response(server.answers_instead)
        server.bodies.append(body)
        server.arrived_s.append(time.perf_counter())
        return StreamingResponse(answer(server, body, chat), media_type="text/event-stream")

    @app.get("/metrics")
    async def metrics() -> Response:
        elapsed_s = time.perf_counter() - began_s
        rates = {"busy_seconds": server.busy_per_s, "offline_tokens": server.generated_per_s}
        lines = [
            f'slackwater_executor_{name}_total{{executor="executor-0"}} {elapsed_s * rate}\n'
            for name, rate in rates.items()
            if rate is not None
        ]
        return Response("".join(lines)) if lines else Response(status_code=404)

    add_batches(app, server)
    return app


def add_batches(app: FastAPI, server: OpenAIServer) -> None:
    @app.get("/v1/batches")
    async def listing() -> Response:
        if server.failing_lists > 0:
            server.failing_lists -= 1
            return refusal(503, "restarting")
        return JSONResponse({"object": "list", "data": []}) if server.has_batches else refusal(404, "no such path")

    @app.post("/v1/files")
    async def upload(request: Request) -> dict[str, Any]:
        form = await request.form()
        file_id = f"file-{next(server.ids)}"
        server.files[file_id] = await form["file"].read()  # type: ignore[union-attr]
        return {"id": file_id, "object": "file"}

    @app.post("/v1/batches")
    async def create(request: Request) -> Response:
        if server.failing_creations > 0:
            server.failing_creations -= 1
            return refusal(429, "too much to do")
        wanted = await request.json()
        lines = [json.loads(line) for line in server.files[wanted["input_file_id"]].splitlines()]
        batch = {"id": f"batch-{next(server.ids)}", "status": "validating", "lines": lines, "done": 0, **wanted}
        server.batches[batch["id"]] = batch | {"began_s": time.perf_counter(), "written": False}
        server.changed.set()
        await server.creating.wait()
        if server.loses_creations:
            return refusal(503, "restarting")
        return JSONResponse({"id": batch["id"], "status": "validating"})

    @app.get("/v1/batches/{batch_id}")
    async def retrieve(batch_id: str) -> Response:
        if server.failing_polls > 0:
            server.failing_polls -= 1
            return refusal(503, "restarting")
        server.polls[batch_id] += 1
        server.changed.set()
        batch = server.batches[batch_id]
        if batch["status"] == "cancelling":
            batch["polls_left"] -= 1
            batch["status"] = "cancelling" if batch["polls_left"] else "cancelled"
        return JSONResponse(advance(server, batch))

    @app.post("/v1/batches/{batch_id}/cancel")
    async def cancel(batch_id: str) -> Response:
        if server.failing_cancels > 0:
            server.failing_cancels -= 1
            server.changed.set()
            return refusal(503, "restarting")
        server.cancels[batch_id] += 1
        batch = server.batches[batch_id]
        batch |= {"status": "cancelling" if server.polls_to_cancel else "cancelled"}
        batch |= {"polls_left": server.polls_to_cancel}
        return JSONResponse(advance(server, batch))

    @app.get("/v1/files/{file_id}/content")
    async def content(file_id: str) -> Response:
        return Response(server.files[file_id])

    @app.delete("/v1/files/{file_id}")
    async def delete(file_id: str) -> Response:
        if not server.deletes_files:
            return refusal(501, "files stay")
        if server.files.pop(file_id, None) is None:
            return refusal(404, "no such file")
        return JSONResponse({"id": file_id, "deleted": True})


def serve(server: OpenAIServer, port: int = 0) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    """Listen from now on: connections that come before the server runs wait in its socket's backlog."""
    listening = socket.create_server(("127.0.0.1", port), backlog=512)
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    running = uvicorn.Server(uvicorn.Config(make_app(server), log_level="error", timeout_graceful_shutdown=1))
    return running, asyncio.create_task(running.serve(sockets=[listening]))
