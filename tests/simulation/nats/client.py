"""nats-py's client with what stands on a socket replaced: it speaks to a ``MemoryServer`` of the same event loop.

Subscriptions, messages, JetStream, key-value and object store above it are nats-py's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import nats.errors
from nats.aio.client import (
    DEFAULT_FLUSH_TIMEOUT,
    Srv,
)
from nats.aio.subscription import Subscription

from shared.bus.connection import CLIENTS, FencedClient
from tests.simulation.nats.session import Session
from tests.simulation.nats.wire import Transport, Unhandled, as_on_the_wire, within

if TYPE_CHECKING:
    from tests.simulation.nats.server import MemoryServer

SCHEME = "memory"
COMMAND_BYTES = 16  # of a command on the wire, about, besides what it carries

NOT_READING = (FencedClient.CLOSED, FencedClient.RECONNECTING)

Headers = dict[str, str]


class MemoryClient(FencedClient):
    """``connect("memory://NAME")`` finds the server that was made with that URL."""

    def __init__(self) -> None:
        super().__init__()
        self._server: MemoryServer
        self._session: Session | None = None
        self._attempted_s: float | None = None  # when it dialled last
        self._unsent: deque[tuple[int, str, tuple[Any, ...]]] = deque()  # commands, until it is connected again
        self._unread: deque[tuple[Any, ...]] = deque()  # messages behind one that takes a while to be processed
        self._reader: asyncio.Task[None] | None = None
        self._answers: Subscription | None = None  # to requests
        self._tasks: set[asyncio.Task[None]] = set()  # membership only, never iterated

    def die(self) -> None:
        """As when its process is killed: nothing is flushed, no callback runs, its socket is closed by the kernel."""
        self._server.clients.remove(self)
        self._status = MemoryClient.CLOSED
        self._unsent.clear()
        self._pending_data_size = 0
        for task in (self._ping_interval_task, self._reconnection_task, self._reader):
            if task is not None:
                task.cancel()
        for sub in list(self._subs.values()):
            sub._stop_processing()
        self._subs.clear()
        if self._session is not None:
            self._session.close_from_client()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        await super()._close(status, do_cbs)
        if self.is_closed and self in self._server.clients:
            self._server.clients.remove(self)

    # connecting

    def _setup_server_pool(self, connect_url: Any) -> None:
        from tests.simulation.nats.server import SERVERS

        server = SERVERS.get(connect_url)
        if server is None:
            raise nats.errors.Error(f"nats: no memory server has the URL {connect_url}")
        self._server = server
        self._nuid = server.nuid
        if self not in server.clients:
            server.clients.append(self)
        self._server_pool = [Srv(urlparse(connect_url))]

    async def _select_next_server(self) -> None:
        wait_s = self.options["reconnect_time_wait"]
        while True:
            loop = asyncio.get_running_loop()
            if self._attempted_s is not None and loop.time() < self._attempted_s + wait_s:
                await asyncio.sleep(wait_s)
            try:
                self._attempted_s = loop.time()
                await self._dial()
                self._current_server = self._server_pool[0]
                return
            except Exception as error:
                self._attempted_s = loop.time()
                self._server_pool[0].reconnects += 1
                self._err = error
                await self._error_cb(error)

    async def _dial(self) -> None:
        """Raises OSError where nobody listens, and TimeoutError."""
        if self._session is not None:
            self._session.close_from_client()
        session = Session(self._server, self, self.options["name"] or "")
        opened: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        session.up.send(COMMAND_BYTES, self._server.on_dial, session, opened)
        try:
            self._server_info = await asyncio.wait_for(opened, self.options["connect_timeout"])
        except BaseException:
            session.close_from_client()
            raise
        self._session = session
        self._transport = Transport(self)

    async def _process_connect_init(self) -> None:
        self._status = MemoryClient.CONNECTING
        session = self._session
        assert session is not None and self._current_server is not None
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.up.send(COMMAND_BYTES, session.on_connect, pong)
        try:
            await asyncio.wait_for(pong, self.options["connect_timeout"])
        except BaseException:
            self._attempted_s = asyncio.get_running_loop().time()
            raise
        self._current_server.server_version = self._server_info["version"]
        self._max_payload = self._server_info["max_payload"]
        self._client_id = self._server_info["client_id"]
        self._status = MemoryClient.CONNECTED
        self._pongs: list[asyncio.Future[Any]] = []
        self._pings_outstanding = 0
        self._ping_interval_task = asyncio.get_running_loop().create_task(self._ping_interval())

    async def _attempt_reconnect(self) -> None:
        if self._ping_interval_task is not None:
            self._ping_interval_task.cancel()
        self._stop_reading()
        if self._session is not None:
            self._session.close_from_client()
        self._err = None  # type: ignore[assignment]  # as nats-py does it
        if self._disconnected_cb is not None:
            await self._disconnected_cb()
        if self.is_closed:
            return
        self._reconnection_task_future = asyncio.get_running_loop().create_future()
        while True:
            try:
                await self._select_next_server()
                await self._process_connect_init()
                self.stats["reconnects"] += 1
                self._resubscribe()
                self._hand_over()
                await self.flush()
                if self._reconnected_cb is not None:
                    await self._reconnected_cb()
                break
            except (TimeoutError, OSError, nats.errors.Error) as error:
                self._err = error
                await self._error_cb(error)
                self._status = MemoryClient.RECONNECTING
                self._attempted_s = asyncio.get_running_loop().time()
            except asyncio.CancelledError:
                break
        if not self._reconnection_task_future.done():
            self._reconnection_task_future.set_result(True)

    def _resubscribe(self) -> None:
        session = self._session
        assert session is not None
        for sid, sub in list(self._subs.items()):
            if 0 < sub._max_msgs <= sub._received:
                del self._subs[sid]
                continue
            session.up.send(COMMAND_BYTES, session.on_subscribe, sid, sub._subject, sub._queue)
            if sub._max_msgs > 0:
                session.up.send(COMMAND_BYTES, session.on_unsubscribe, sid, sub._max_msgs - sub._received)

    # sending

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        sent = None if headers is None else as_on_the_wire(headers)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        num_bytes = COMMAND_BYTES + len(subject) + len(reply) + payload_size
        self._send(num_bytes, "on_publish", subject, reply, bytes(payload), sent)

    async def _send_subscribe(self, sub: Subscription) -> None:
        if sub._cb is not None:
            sub._pending_queue = Unhandled(sub._pending_queue.maxsize)
        self._send(COMMAND_BYTES + len(sub._subject), "on_subscribe", sub._id, sub._subject, sub._queue)

    async def _send_unsubscribe(self, sid: int, limit: int = 0) -> None:
        self._send(COMMAND_BYTES, "on_unsubscribe", sid, limit)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        session = self._session
        assert session is not None
        session.up.send(COMMAND_BYTES, session.on_ping)

    def _send(self, num_bytes: int, command: str, *arguments: Any) -> None:
        """In order; kept while it is not connected."""
        session = self._session
        if session is not None and not self._unsent and self.is_connected:
            session.up.send(num_bytes, getattr(session, command), *arguments)
            return
        self._unsent.append((num_bytes, command, arguments))
        self._pending_data_size += num_bytes
        if self.is_connected:
            self._hand_over()

    def _hand_over(self) -> None:
        session = self._session
        assert session is not None
        while self._unsent:
            num_bytes, command, arguments = self._unsent.popleft()
            session.up.send(num_bytes, getattr(session, command), *arguments)
        self._pending_data_size = 0

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if self.is_connected and self._session is not None:
            self._hand_over()

    async def flush(self, timeout: float = DEFAULT_FLUSH_TIMEOUT) -> None:  # noqa: ASYNC109 - nats-py's own
        if timeout <= 0:
            raise nats.errors.BadTimeoutError
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if not self.is_connected:  # nobody reads: nats-py waits for no answer then
            return
        future = asyncio.get_running_loop().create_future()
        try:
            await self._send_ping(future)
            await asyncio.wait_for(future, timeout)
        except TimeoutError as error:
            raise nats.errors.FlushTimeoutError from error

    async def _request_new_style(
        self,
        subject: str,
        payload: bytes,
        timeout: float = 1,  # noqa: ASYNC109 - nats-py's own
        headers: dict[str, Any] | None = None,
    ) -> Any:
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        token = self._nuid.next().decode()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._resp_map[token] = future
        try:
            await self.publish(subject, payload, reply=self._resp_sub_prefix.decode() + token, headers=headers)
            return await within(future, timeout)
        except TimeoutError as error:
            raise nats.errors.TimeoutError from error
        finally:
            self._resp_map.pop(token, None)

    async def _init_request_sub(self) -> None:
        await super()._init_request_sub()
        self._answers = self._subs[self._sid]

    # what comes from the server, of the session that it is called with

    def on_message(
        self, session: Session, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None:
        if session is not self._session or self._status in NOT_READING:
            return
        sub = self._subs.get(sid)
        if self._reader is not None:
            self._unread.append((sid, subject, reply, data, headers))
            return
        if sub is not None and sub._jsi:  # a push consumer's: nats-py may ask the server meanwhile
            self._unread.append((sid, subject, reply, data, headers))
            self._reader = asyncio.get_running_loop().create_task(self._read())
            return
        stats = self.stats
        stats["in_msgs"] += 1
        stats["in_bytes"] += len(data)
        if sub is None:
            return
        if sub is self._answers:  # nats-py has a task for them, which does this
            asked = self._resp_map.get(subject[len(self._resp_sub_prefix) :])
            if asked is not None and not asked.done():
                asked.set_result(self._msg(sid, subject, reply, data, headers))
            return
        sub._received += 1
        if 0 < sub._max_msgs <= sub._received:
            self._subs.pop(sid, None)
        msg = self._msg(sid, subject, reply, data, headers)
        future = sub._future
        if future is not None:
            if not future.done():
                future.set_result(msg)
            return
        try:
            if 0 < sub._pending_bytes_limit <= sub._pending_size + len(data):
                raise asyncio.QueueFull
            sub._pending_queue.put_nowait(msg)
            sub._pending_size += len(data)
        except asyncio.QueueFull:
            error = nats.errors.SlowConsumerError(subject=subject, reply=reply, sid=sid, sub=sub)
            self._begin(self._error_cb(error))

    def _msg(self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None) -> Any:
        return self.msg_class(self, subject, reply, data, dict(headers) if headers else None, None, False, sid)

    def on_pong(self, session: Session) -> None:
        if session is self._session and self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(True)
            self._pings_outstanding = 0

    def on_ping(self, session: Session) -> None:
        if session is self._session and self.is_connected:
            session.up.send(COMMAND_BYTES, session.on_pong)

    def on_error(self, session: Session, text: str) -> None:
        """The server says what is wrong, before it closes the connection."""
        if session is self._session and not self.is_closed:
            self._begin(self._process_err(text))

    def on_end(self, session: Session) -> None:
        """The server's end is closed."""
        if session is self._session and not (self.is_closed or self.is_reconnecting):
            self._begin(self._process_end())

    async def _process_end(self) -> None:
        error = nats.errors.UnexpectedEOF()
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while self._unread:
                sid, subject, reply, data, headers = self._unread.popleft()
                await self._process_msg(sid, subject.encode(), reply.encode(), data, headers)
        self._reader = None

    async def _process_headers(self, headers: Any) -> Any:
        """They were never bytes."""
        return dict(headers) if headers else None

    def _stop_reading(self) -> None:
        self._unread.clear()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        self._reader = None

    def _begin(self, doing: Any) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


CLIENTS[SCHEME] = MemoryClient
