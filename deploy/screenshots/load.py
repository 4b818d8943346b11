"""What a stack does while it is photographed: chats that come and go like people, and batches of several sizes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import threading
from collections.abc import Sequence
from types import TracebackType

import httpx

BATCH_LINES = {"spot check": 40, "reviews": 45_000, "": 30_000}  # one that ends, and two that are seen at work
MEAN_RATE, SWING, PERIOD_S = 5.0, 0.6, 110.0  # chats per second: their mean, and how it rises and falls
TIMEOUT_S = 120.0


def submit_batches(client: httpx.Client) -> None:
    """Lines with long prompts that begin alike, and short answers; and one batch whose file has a line that is none."""
    model = client.get("/v1/models").json()["data"][0]["id"]
    _submit(client, [_line(model, 0), '{"custom_id": "second"}\n'], "half a file")
    for name, num_lines in BATCH_LINES.items():
        _submit(client, [_line(model, index) for index in range(num_lines)], name)


def _submit(client: httpx.Client, lines: Sequence[str], name: str) -> None:
    upload = {"file": ("batch.jsonl", "".join(lines).encode())}
    file = client.post("/v1/files", files=upload, data={"purpose": "batch"}).raise_for_status().json()
    batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    metadata = {"metadata": {"name": name}} if name else {}
    client.post("/v1/batches", json=batch | metadata).raise_for_status()


def _line(model: str, index: int) -> str:
    question = f"Review {index} of product {index // 20}. " * (2 + index % 9)
    prompt = "Say whether the review is kind, and why. " * 12 + question
    body = {"model": model, "prompt": prompt, "max_tokens": 40 + index % 80, "ignore_eos": True}
    request = {"custom_id": f"line-{index}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(request) + "\n"


class Chats:
    """Sends them from a thread of its own, for as long as the context lasts. An answer that fails is nobody's loss."""

    def __init__(self, url: str, numbers: random.Random) -> None:
        self._url = url
        self._numbers = numbers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))

    def __enter__(self) -> Chats:
        self._thread.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S) as client, asyncio.TaskGroup() as chats:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            while not self._is_over.is_set():
                phase = 2 * math.pi * (loop.time() - begin_s) / PERIOD_S
                rate = MEAN_RATE * (1 + SWING * math.sin(phase))
                await asyncio.sleep(self._numbers.expovariate(rate))
                chats.create_task(self._chat(client, model))

    async def _chat(self, client: httpx.AsyncClient, model: str) -> None:
        numbers = self._numbers
        text = "Tell me about the tides. " * int(min(60, numbers.lognormvariate(2.2, 0.9)))
        max_tokens = int(min(300, max(8, numbers.lognormvariate(4.2, 0.6))))
        body = {"model": model, "messages": [{"role": "user", "content": text or "Hello"}], "max_tokens": max_tokens}
        with contextlib.suppress(httpx.HTTPError):
            await client.post("/v1/chat/completions", json=body | {"ignore_eos": True})
