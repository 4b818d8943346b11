"""Batches of all kinds: each is uploaded, created, watched, and read at its end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.checker.batches import FINAL
from tests.checker.history import Batch, BatchState, File, Line, LineEnd, Tokens
from tests.faults.load.client import Clients, pages
from tests.faults.load.questions import CHAT, COMPLETIONS, Question, Questions

POLL_S = 1.0
KEYLESS_SHARE = 0.3  # of creations, without an Idempotency-Key


@dataclass
class Order:
    """What a client is to submit. ``file``: its lines."""

    endpoint: str
    lines: list[Line] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    is_malformed: bool = False
    cancels: bool = False

    def add(self, question: Question, right: str | None, end: LineEnd = LineEnd.ANSWERED, **fields: Any) -> None:
        line = Line(f"line-{len(self.lines)}", right, end)
        body = {**question.body, **fields}
        written = {"custom_id": line.custom_id, "method": "POST", "url": self.endpoint, "body": body}
        self.lines.append(line)
        self.file.append(json.dumps(written))


def plain(questions: Questions, rng: random.Random, num_lines: int = 0) -> Order:
    order = Order(COMPLETIONS)
    for question in rng.choices(questions.short, k=num_lines or rng.randrange(1, 40)):
        order.add(question, questions.right[question])
    return order


def large(questions: Questions, rng: random.Random) -> Order:
    return plain(questions, rng, rng.randrange(150, 400))


def cancelled(questions: Questions, rng: random.Random) -> Order:
    order = large(questions, rng)
    order.cancels = True
    return order


def with_bad_lines(questions: Questions, rng: random.Random) -> Order:
    """Well-formed lines that cannot be served, among others."""
    order = Order(COMPLETIONS)
    for question in rng.choices(questions.short, k=rng.randrange(4, 30)):
        if rng.random() < 0.3:
            order.add(question, None, LineEnd.FAILED, temperature=rng.choice([-1, 99, "warm"]))
        else:
            order.add(question, questions.right[question])
    return order


def malformed(questions: Questions, rng: random.Random) -> Order:
    """A file that is none of a batch."""
    order = plain(questions, rng, rng.randrange(2, 60))
    order.is_malformed = True
    broken = rng.choice(['{"custom_id": ', order.file[0], json.dumps({"custom_id": "x"}), "[]"])
    order.file.insert(rng.randrange(1, len(order.file) + 1), broken)
    return order


def chat(questions: Questions, rng: random.Random) -> Order:
    """With schemas and calls of tools, where the engine has them."""
    order = Order(CHAT)
    pool = [*questions.chats, *questions.schemas, *questions.tools]
    for question in rng.choices(pool, k=rng.randrange(2, 24)):
        order.add(question, questions.right[question])
    return order


ORDERS: tuple[Callable[[Questions, random.Random], Order], ...] = (
    plain, large, cancelled, with_bad_lines, malformed, chat,
)  # fmt: skip


async def be_client(clients: Clients, questions: Questions, name: str) -> None:
    """One batch after the other."""
    number = 0
    while not clients.is_over.is_set():
        order = clients.rng.choice(ORDERS)
        await submit(clients, order(questions, clients.rng), f"{name}-{number} {order.__name__}")
        number += 1
        await clients.rest(1.0)


async def submit(clients: Clients, order: Order, name: str) -> None:
    """Until its end, which is in the history."""
    file = await upload(
        clients, f"{name}.jsonl".replace(" ", "-"), "".join(f"{line}\n" for line in order.file).encode()
    )
    if file.file_id is None:
        return
    batch = Batch(name, order.lines, clients.now(), is_malformed=order.is_malformed)
    clients.history.batches.append(batch)
    await _create(clients, batch, order.endpoint, file.file_id)
    if batch.batch_id is None:
        return
    await _watch(clients, batch, order.cancels)
    await _read(clients, batch)
    await delete(clients, file)


async def upload(clients: Clients, name: str, content: bytes) -> File:
    """Tried once: a file that nobody confirmed may be there."""
    file = File(name, len(content), clients.now())
    clients.history.files.append(file)
    answer = await clients.ask("POST", "/v1/files", files={"file": (name, content)}, data={"purpose": "batch"})
    if answer is not None and answer.status_code == httpx.codes.OK:
        file.stored, file.stored_s, file.file_id = True, clients.now(), answer.json()["id"]
    return file


async def delete(clients: Clients, file: File) -> None:
    file.delete_sent_s = clients.now()
    answer = await clients.ask_until("DELETE", f"/v1/files/{file.file_id}")
    if answer is not None and answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND):
        file.deleted, file.deleted_s = True, clients.now()  # 404: by an earlier attempt, whose answer was lost


async def _create(clients: Clients, batch: Batch, endpoint: str, file_id: str) -> None:
    """With a key it is tried until it is answered, without one once."""
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
    if clients.rng.random() < KEYLESS_SHARE:
        answer = await clients.ask("POST", "/v1/batches", json=body)
    else:
        key = f"{batch.name}-{clients.rng.getrandbits(64):x}".replace(" ", "-")
        answer = await clients.ask_until("POST", "/v1/batches", json=body, headers={"Idempotency-Key": key})
    if answer is not None:
        batch.accepted = answer.status_code == httpx.codes.OK
        batch.batch_id = answer.json()["id"] if batch.accepted else None


async def _watch(clients: Clients, batch: Batch, cancels: bool) -> None:
    cancels_s = clients.now() + clients.rng.uniform(0.0, 8.0) if cancels else float("inf")
    while batch.status not in FINAL:
        if clients.now() >= cancels_s:
            batch.cancelled_s = batch.cancelled_s or clients.now()
            answer = await clients.ask_until("POST", f"/v1/batches/{batch.batch_id}/cancel")
            cancels_s = float("inf")
        else:
            answer = await clients.ask("GET", f"/v1/batches/{batch.batch_id}")
        if answer is not None and answer.status_code == httpx.codes.OK:
            _note(batch, clients.now(), answer.json())
        elif answer is not None and answer.status_code == httpx.codes.NOT_FOUND:
            batch.states.append(BatchState(clients.now(), "404", 0, 0, 0))
            return
        await asyncio.sleep(POLL_S)


def _note(batch: Batch, now_s: float, seen: dict[str, Any]) -> None:
    counts = seen.get("request_counts") or {"total": 0, "completed": 0, "failed": 0}
    state = BatchState(now_s, seen["status"], counts["total"], counts["completed"], counts["failed"])
    if not batch.states or (batch.states[-1].status, batch.states[-1].completed) != (state.status, state.completed):
        batch.states.append(state)
    if usage := seen.get("usage"):
        num_cached = usage["input_tokens_details"]["cached_tokens"]
        batch.tokens = Tokens(usage["input_tokens"], num_cached, usage["output_tokens"], usage["total_tokens"])


async def _read(clients: Clients, batch: Batch) -> None:
    """Its last word once more, with its files."""
    answer = await clients.ask_until("GET", f"/v1/batches/{batch.batch_id}")
    if answer is None or answer.status_code != httpx.codes.OK:
        batch.unread = f"the batch: {answer and answer.status_code}"
        return
    seen = answer.json()
    _note(batch, clients.now(), seen)
    batch.output = await _lines(clients, batch, seen["output_file_id"])
    batch.errors = await _lines(clients, batch, seen["error_file_id"])


async def _lines(clients: Clients, batch: Batch, file_id: str | None) -> list[str] | None:
    if file_id is None:
        return None
    answer = await clients.ask_until("GET", f"/v1/files/{file_id}/content")
    if answer is None or answer.status_code != httpx.codes.OK:
        batch.unread = f"{file_id}: {answer and answer.status_code}"
        return None
    return answer.text.splitlines()


async def list_all(clients: Clients, server: str) -> None:
    """As what the gateway's list has each batch."""
    states: dict[str, str] = {}
    async with clients.http(server) as client:
        async for page in pages(client, "/v1/batches"):
            states |= {batch["id"]: batch["status"] for batch in page}
    for batch in clients.history.batches:
        if batch.batch_id is not None:
            batch.listed[server] = states.get(batch.batch_id, "")
