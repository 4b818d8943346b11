"""Files that are uploaded, read, deleted and listed, and uploads that break off."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import httpx

from tests.checker.history import File, Read
from tests.faults.load.batches import delete, upload
from tests.faults.load.client import Clients, pages

BREAKING_SHARE, DELETED_SHARE = 0.25, 0.6
MAX_BYTES = 300_000
BOUNDARY = "a-boundary-of-a-form"


async def be_client(clients: Clients, name: str, contents: dict[str, bytes]) -> None:
    """One file after the other. ``contents``: of those that are to stay, by file id."""
    rng, number = clients.rng, 0
    while not clients.is_over.is_set():
        content = os.urandom(rng.randrange(1, MAX_BYTES))
        if rng.random() < BREAKING_SHARE:
            await break_off(clients, f"{name}-{number}-broken", content)
        else:
            file = await upload(clients, f"{name}-{number}", content)
            await _use(clients, file, content, contents)
        number += 1
        await clients.rest(3.0)


async def _use(clients: Clients, file: File, content: bytes, contents: dict[str, bytes]) -> None:
    if file.file_id is None:
        return
    for _ in range(clients.rng.randrange(1, 4)):
        await read(clients, file, content)
        await clients.rest(1.0)
    if clients.rng.random() < DELETED_SHARE:
        await delete(clients, file)
        await read(clients, file, content)
    else:
        contents[file.file_id] = content


async def read(clients: Clients, file: File, content: bytes, server: str = "") -> None:
    """At this gateway, or any."""
    at_s = clients.now()
    answer = await clients.ask("GET", f"/v1/files/{file.file_id}/content", server)
    if answer is None:
        file.reads.append(Read(at_s, None, server=server))
    else:
        file.reads.append(Read(at_s, answer.status_code, answer.content == content, server))


async def read_everywhere(clients: Clients, contents: dict[str, bytes]) -> None:
    """At each gateway, those that are to be there, with these ``contents`` by their ids, and those that are not."""
    for server in clients.urls:
        for file in clients.history.files:
            if file.file_id in contents or file.deleted:
                await read(clients, file, contents.get(str(file.file_id), b""), server)


async def break_off(clients: Clients, name: str, content: bytes) -> None:
    """The client leaves in the middle of its upload."""
    file = File(name, len(content), clients.now(), stored=False)
    clients.history.files.append(file)
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    ).encode()
    half = head + content[: len(content) // 2]

    async def body() -> AsyncIterator[bytes]:
        yield half
        await asyncio.sleep(0.05)  # it is on its way
        raise httpx.WriteError("the client leaves")

    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Content-Length": str(2 * len(half))}
    async with clients.http(clients.server()) as client:
        try:
            await client.post("/v1/files", content=body(), headers=headers)
        except httpx.HTTPError:
            return


async def list_all(clients: Clients, server: str) -> None:
    """Whether the gateway's list has each file, by its name."""
    names: set[str] = set()
    async with clients.http(server) as client:
        async for page in pages(client, "/v1/files"):
            names |= {file["filename"] for file in page}
    for file in clients.history.files:
        file.listed[server] = file.name in names
