"""Keys that are made, used and revoked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import httpx

from services.local.stack.keys import Keys
from shared.bus import Bus
from shared.errors import SlackwaterError
from tests.checker.history import Key, KeyTry
from tests.faults.load.client import Clients

Connect = Callable[[], AbstractAsyncContextManager[Bus]]
REVOKED_SHARE = 0.6


async def be_client(clients: Clients, connect: Connect, name: str, known: dict[str, str]) -> None:
    """As ``slackwater key`` makes and revokes them. ``known``: the keys themselves, by their names."""
    number = 0
    while not clients.is_over.is_set():
        key = Key(f"{name}-{number}")
        clients.history.keys.append(key)
        number += 1
        await _make(clients, connect, key, known)
        if key.name in known:
            await try_everywhere(clients, key, known[key.name])
            await clients.rest(4.0)
            if clients.rng.random() < REVOKED_SHARE:
                await _revoke(clients, connect, key)
        await clients.rest(6.0)


async def _make(clients: Clients, connect: Connect, key: Key, known: dict[str, str]) -> None:
    key.make_sent_s = clients.now()
    try:
        async with connect() as bus:
            known[key.name] = await (await Keys.on(bus)).create(key.name)
        key.made_s = clients.now()
    except SlackwaterError:
        return


async def _revoke(clients: Clients, connect: Connect, key: Key) -> None:
    key.revoke_sent_s = clients.now()
    try:
        async with connect() as bus:
            await (await Keys.on(bus)).revoke(key.name)
        key.revoked_s = clients.now()
    except SlackwaterError:
        return


async def try_everywhere(clients: Clients, key: Key, secret: str) -> None:
    """At each gateway."""
    for server in clients.urls:
        at_s, status = clients.now(), None
        async with clients.http(server) as client:
            try:
                answer = await client.get("/v1/models", headers={"Authorization": f"Bearer {secret}"})
                status = answer.status_code
            except httpx.HTTPError:
                pass
        key.tries.append(KeyTry(at_s, server, status))
