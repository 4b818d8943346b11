"""A nats-server in memory: connections, subjects, JetStream and its disk, in one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tests.simulation.nats.jetstream import JetStream
from tests.simulation.nats.links import Direction, Link
from tests.simulation.nats.session import Headers, Session, Sub
from tests.simulation.nats.subjects import Listeners, matches

if TYPE_CHECKING:
    from tests.simulation.nats.client import MemoryClient

SERVERS: WeakValueDictionary[str, MemoryServer] = WeakValueDictionary()  # by URL

VERSION = "2.15.1"  # whose behaviour this is
MAX_PAYLOAD = 1024**2
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 22


class Ids:
    """Instead of nats-py's NUID: ids of its length from the given randomness."""

    def __init__(self, rng: random.Random) -> None:
        self._prefix = "".join(rng.choices(DIGITS, k=ID_LENGTH - 10))
        self._num = 0

    def next(self) -> bytearray:
        self._num += 1
        return bytearray(f"{self._prefix}{self._num:010d}", "ascii")


class MemoryServer:
    """``start`` it in a running event loop, and connect to its URL with ``shared.bus``'s ``Bus.connect``.

    ``rng``: all randomness; ``clock``: unix time in seconds, of stored messages, the event loop's own time without it;
    ``sync_interval_s``: how long what is stored may wait for the disk, 0 for nats-server's ``sync_interval: always``;
    ``latency_s``: of each way of each link, until it is changed there.
    """

    def __init__(
        self,
        url: str = "memory://nats",
        rng: random.Random | None = None,
        clock: Callable[[], float] | None = None,
        sync_interval_s: float = 120.0,
        max_payload: int = MAX_PAYLOAD,
        latency_s: float = 0.0,
    ) -> None:
        self.url = url
        self.rng = rng or random.Random(0)
        self.clock = clock or (lambda: asyncio.get_running_loop().time())
        self.jetstream = JetStream(self, self.clock, self.rng, sync_interval_s)
        self.max_payload = max_payload
        self.latency_s = latency_s
        self.nuid = Ids(self.rng)
        self.context = copy_context()  # what the server does is done in it, whoever asked for it
        self.listeners: Listeners[Sub] = Listeners()
        self.is_running = False
        self.has_power = True
        self.sessions: dict[int, Session] = {}
        self._to_reset: dict[Session, None] = {}  # once there is power: TCP sends again what nobody confirmed
        self.clients: list[MemoryClient] = []  # that are not closed
        self._links: dict[str, Link] = {}
        self._num_clients = 0
        SERVERS[url] = self

    def link(self, name: str) -> Link:
        """The link of whoever connects by this name, now or later: to be slowed, cut, healed."""
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = Link(Direction(self.latency_s), Direction(self.latency_s))
        return link

    def connections(self, name: str) -> list[Session]:
        """Those that are open at the server."""
        return [session for session in self.sessions.values() if session.name == name]

    def die(self, name: str) -> None:
        """The process that connected by this name is killed: its clients do nothing any more."""
        for client in [client for client in self.clients if client.options.get("name") == name]:
            client.die()

    # its life

    def start(self) -> None:
        """Also again: with what its disk has."""
        assert not self.is_running, "it runs"
        self.is_running = self.has_power = True
        self.jetstream.start()
        for session in self._to_reset:
            session.reset()
        self._to_reset.clear()

    def stop(self) -> None:
        """As with SIGTERM: everything is on the disk, and clients are told."""
        for session in list(self.sessions.values()):
            session.close()
        self.is_running = False
        self.jetstream.stop()
        self.jetstream.sync()

    def kill(self) -> None:
        """As with SIGKILL: the operating system keeps what was written, and closes the connections; of what was under
        way to a client some may be lost."""
        for session in list(self.sessions.values()):
            session.down.lose(self.rng.randint(0, len(session.down)))
            session.close()
        self.is_running = False
        self.jetstream.stop()

    def cut_power(self) -> None:
        """The whole machine: what was not synced is lost, and nobody answers until it starts again."""
        for session in list(self.sessions.values()):
            session.down.lose(self.rng.randint(0, len(session.down)))
            session.lose_power()
        self.is_running = self.has_power = False
        self.jetstream.cut_power()

    # connections

    def on_dial(self, session: Session, opened: asyncio.Future[dict[str, Any]]) -> None:
        if not self.has_power:
            return
        if not self.is_running:
            session.tell(opened, ConnectionRefusedError(f"nothing listens at {self.url}"))
            return
        self._num_clients += 1
        session.is_open = True
        self.sessions[id(session)] = session
        info = {"version": VERSION, "max_payload": self.max_payload, "client_id": self._num_clients, "headers": True}
        session.tell(opened, info)

    def reset(self, session: Session) -> None:
        """One that is not known since the power was cut, of which something has come."""
        if self.has_power:
            session.reset()
        else:
            self._to_reset[session] = None

    def forget(self, session: Session) -> None:
        self.sessions.pop(id(session), None)

    # messages

    def publish(self, session: Session, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        """What a client sends."""
        is_delivered = self.send_to(subject, subject, reply, data, headers)
        is_taken = self.jetstream.take(subject, reply, data, headers)
        if reply and not (is_delivered or is_taken):
            for sub in session.subs.values():
                if matches(sub.subject, reply):
                    session.deliver(sub, reply, "", b"", _no_responders(subject))
                    return

    def send_to(self, listened: str, subject: str, reply: str, data: bytes, headers: Headers | None) -> bool:
        """To all that listen there alone, and one of each queue group; whether there was anybody."""
        alone, groups = self.listeners.of(listened)
        for sub in alone:
            sub.session.deliver(sub, subject, reply, data, headers)
        for group in groups.values():
            sub = group[0] if len(group) == 1 else group[self.rng.randrange(len(group))]
            sub.session.deliver(sub, subject, reply, data, headers)
        return bool(alone or groups)


def _no_responders(subject: str) -> Headers:
    """As nats-py reads what nats-server sends."""
    return {"Status": "503", "Description": f"\nNats-Subject: {subject}", "Nats-Subject": subject}
