"""One connection to the bus, which reconnects without limit and says so."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from shared.bus.address import BusAddress
from shared.bus.credentials import Credentials, Shown
from shared.bus.permissions import inbox_prefix
from shared.cancellation import check_cancelled, ending, keeping_cancellation, within
from shared.errors import BusError, ConfigError, NoRoomOnBusError, TooLargeForBusError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
OPERATION_TIMEOUT_S = 10.0
MOST_SUBJECTS = 4000  # bytes of a message's subjects: nats-server ends a connection over a line of 4,096
PING_S = 20  # a server that is silent for three of them is taken for lost;
CLUSTER_PING_S = 3  # where there is another one to go to, that is worth knowing soon
SAFE_REPLICAS = 3  # of which one may be lost
CLOSE_S = 5.0  # for what handlers still do, and what was published
AGAIN_S = 1.0  # until what may be done again is, while there is no connection
DROPPED_PERIOD_S = 1.0  # of log lines about dropped messages

# Of what a server says before it closes a connection: what another try may have put right.
NOT_LET_IN = ("authorization violation", "authorization failed", "authentication expired", "authentication revoked")

NO_JETSTREAM = "JetStream does not answer; nats-server has it with -js, or with jetstream {} in its configuration"

# JetStream's error codes for a store that is full: of an account, of the server.
STORE_IS_FULL = (10002, 10023)
NO_ROOM_IN_WORDS = "the bus has no room (nats-server's max_file_store): delete files, or give it more"

FAILURES = (nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError, OSError)

T = TypeVar("T")


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """nats-py does not tell asyncio that its streams have TLS, of which asyncio complains at each one's end."""
    return "returning true from eof_received()" not in str(record.msg)


logging.getLogger("asyncio").addFilter(_is_worth_saying)


class FencedError(nats.errors.Error):  # type: ignore[misc]
    """This process may not send now."""


class FencedClient(Client):  # type: ignore[misc]
    """All that is sent goes through ``publish``; ``may_send`` decides by its subject. It shows its ``credentials`` at
    each connection anew, and says nothing to a server without TLS where it ``requires_tls``. A connection that the
    server ends for what it was shown is made again: by then others may be there."""

    may_send: Callable[[str], bool] = staticmethod(lambda subject: True)
    credentials: Credentials | None = None
    requires_tls = False
    _shown: Shown

    def __init__(self) -> None:
        super().__init__()
        self._handling: dict[asyncio.Task[None], None] = {}

    @property
    def is_away(self) -> bool:
        """The connection is lost; or it is there again, and nobody is told of that yet."""
        return self.is_reconnecting or (self._reconnection_task is not None and not self._reconnection_task.done())

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        try:
            if not self.may_send(subject):
                raise FencedError(f"{subject}: this process may not send now")
            if len(subject.encode()) + len(reply.encode()) > MOST_SUBJECTS:
                raise nats.errors.BadSubjectError
            await super().publish(subject, payload, reply, headers)
        except BaseException:
            self._resp_map.pop(reply.rpartition(".")[2], None)  # nats-py would await for ever what was not asked
            raise

    def handle(self, handling: Coroutine[Any, Any, None]) -> None:
        """Beside what other handlers do: nats-py waits for that of its subscriptions alone, and ends that alone."""
        task = asyncio.get_running_loop().create_task(handling)
        self._handling[task] = None
        task.add_done_callback(self._handling.pop)

    def show(self, nonce: str) -> bytes:
        """nats-py's callback, which it calls before it sends whose signature it is."""
        assert self.credentials is not None
        try:
            self._shown = self.credentials.show(nonce)
        except ConfigError as error:
            raise nats.errors.Error(str(error)) from error
        self._public_nkey = self._shown.public_key
        self._user_jwt_cb = self._jwt if self._shown.jwt else None
        return self._shown.signature.encode()

    def _jwt(self) -> bytes:
        return self._shown.jwt.encode()

    def _connect_command(self) -> bytes:
        if self.requires_tls and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server does not speak TLS")
        command: bytes = super()._connect_command()
        return command

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """nats-py takes new servers into its pool, but leaves what the server has told as it was."""
        if "connect_urls" in info:
            self._server_info["connect_urls"] = info["connect_urls"]
        await super()._process_info(info, initial_connection)

    async def _process_pong(self) -> None:
        """nats-py would stop reading at the answer to a flush that was given up."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        if self.is_connected and _is_not_let_in(err_msg):
            await self._process_op_err(nats.errors.AuthorizationError())
        else:
            await super()._process_err(err_msg)

    async def finish(self) -> None:
        """Let handlers finish, with the answers that they wait for, and wait until the server has what was published;
        ``abandon`` is next. nats-py's ``drain`` is both, but hears no answers meanwhile, and waits again where it is
        told to wait no more. Raises FAILURES and uvloop's RuntimeError where the server is away."""
        if not self.is_connected:
            raise nats.errors.ConnectionReconnectingError
        if (self._subs or self._handling) and not self._resp_sub_prefix:
            await self._init_request_sub()  # nats-py does with the first request, which a handler may yet make
        self._status = Client.DRAINING_SUBS
        own = f"{self._inbox_prefix.decode()}."
        for is_answer in (False, True):
            ended = [each._drain() for each in self._subs.values() if each.subject.startswith(own) is is_answer]
            await asyncio.gather(*ended, return_exceptions=True)
            if self._handling:
                await asyncio.wait(self._handling)
        self._status = Client.DRAINING_PUBS
        await self.flush()

    async def abandon(self) -> None:
        """Close, with what the server has not taken yet, and what handlers still do."""
        for task in self._handling:
            task.cancel()
        self._drop_pending()
        self._abort()
        await self.close()

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """nats-py's overtakes what was published before, so that a flush would tell nothing of that."""
        if self.is_connected and self._pending:
            self._transport.writelines(self._pending)
            self._drop_pending()
        await super()._send_ping(future)

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._pending_data_size = 0

    async def _attempt_reconnect(self) -> None:
        self._abort()
        await super()._attempt_reconnect()

    def _abort(self) -> None:
        """nats-py closes a socket once the server has taken what was written, and has answered to the end of TLS: one
        that is silent does neither."""
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            self._transport._io_writer.transport.abort()


CLIENTS: dict[str, type[FencedClient]] = {}  # by the URL's scheme; of any other it is nats-py's own


class Connection:
    """One connection of one process. Make it with ``Bus.connect``."""

    def __init__(self, client: FencedClient, replicas: int = 0) -> None:
        """``replicas``: as an address has them."""
        self._client = client
        self._asked_replicas = replicas
        self._js = client.jetstream(timeout=OPERATION_TIMEOUT_S)
        self._closed = asyncio.Event()
        self._on_reconnect: dict[Callable[[], None], None] = {}  # told of each
        self.reconnects = 0
        self.num_failed = 0  # messages whose handler raised, or that do not parse
        self.num_dropped = 0  # messages that came faster than they were handled
        self._dropped: dict[str, int] = {}  # by subscription, not in the log yet

    @classmethod
    async def connect(cls, address: BusAddress | str, name: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """Connect, trying for ``timeout_s``; from then on reconnect without limit. An address that is a URL is that of
        a bus which lets everyone in. Raises BusError, and ConfigError for an address or credentials that cannot be
        used."""
        address = address if isinstance(address, BusAddress) else BusAddress(address)
        address.require_usable()
        url, names_one = address.url, len(address.servers) == 1
        client = CLIENTS.get(urlsplit(url).scheme, FencedClient)()
        access = _access(client, address)
        connection, last_error = cls(client, address.replicas), ""

        async def on_disconnect() -> None:
            if not client.is_closed and not client.is_draining:
                logger.warning("bus connection lost, reconnecting", extra={"url": address.shown})

        async def on_reconnect() -> None:
            connection.reconnects += 1
            for tell in list(connection._on_reconnect):
                tell()
            logger.warning("bus connection restored", extra={"url": address.shown})

        async def on_closed() -> None:
            connection._closed.set()

        async def on_error(error: Exception) -> None:
            if isinstance(error, nats.errors.SlowConsumerError):
                connection._count_dropped(error.sub.subject)
            else:  # while it reconnects, each attempt that fails
                nonlocal last_error
                if not _is_not_let_in(last_error):  # which is often followed by a mere end of the connection
                    last_error = str(error) or repr(error)
                level = logging.ERROR if client.is_connected else logging.DEBUG
                logger.log(level, "bus error", extra={"error": repr(error)})

        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                connecting = client.connect(
                    url if names_one else address.servers,
                    name=name,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,
                    connect_timeout=2,
                    ping_interval=CLUSTER_PING_S if address.is_cluster else PING_S,
                    pending_size=64 * 1024 * 1024,
                    disconnected_cb=on_disconnect,
                    reconnected_cb=on_reconnect,
                    closed_cb=on_closed,
                    error_cb=on_error,
                    **access,
                )
                # nats-py tries without end by itself, and may lose a cancellation on its way
                await within(deadline - asyncio.get_running_loop().time(), connecting)
                return connection
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise BusError(_why_not(address, name, last_error or repr(error))) from error
                await asyncio.sleep(0.2)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def is_away(self) -> bool:
        """The connection is lost; or it is there again, and ``reconnects`` does not say so yet."""
        return self._client.is_away

    @property
    def max_payload(self) -> int:
        """Bytes of a message that the server takes."""
        return int(self._client.max_payload)

    @property
    def num_servers(self) -> int:
        """That take clients, as the one that it is connected to tells."""
        return max(1, len(set(self._client._server_info.get("connect_urls") or ())))

    @property
    def replicas(self) -> int:
        """Copies that what is made on this bus has: as asked, else as its servers can keep."""
        return self._asked_replicas or (SAFE_REPLICAS if self.num_servers >= SAFE_REPLICAS else 1)

    @property
    def is_closed(self) -> bool:
        """See ``wait_closed``."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Return once nothing goes over it any more. nats-py reconnects after all but what a server calls an error of
        the protocol."""
        await self._closed.wait()

    def fence(self, may_send: Callable[[str], bool]) -> None:
        """From now on what it forbids, by the subject, fails as if the bus were away."""
        self._client.may_send = may_send

    async def wait_reconnected(self, generation: int, timeout_s: float | None) -> None:
        """Return when the connection was restored after ``reconnects`` read ``generation``, or after the timeout, if
        any."""
        if self.reconnects != generation:
            return
        with self._news() as (news, tell):
            timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, tell)
            try:
                await news
            finally:
                if timer is not None:
                    timer.cancel()

    async def through_reconnects(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` returns, which may be done again: it is, where the connection was lost meanwhile, as soon as
        there is one, since what was asked before is not answered any more; and where this process may not send for a
        while. Raises BusError where it failed over a connection that has held."""
        while True:
            generation = self.reconnects
            doing = asyncio.ensure_future(work())
            try:
                async with ending(doing):
                    await self._done_or_restored(doing)
                    if doing.done():
                        return doing.result()
            except BusError as error:
                has_held = generation == self.reconnects and not self.is_away
                if has_held and not isinstance(error.__cause__, FencedError):
                    raise
                logger.info("tried again, since the bus was away", extra={"why": str(error)})
                await self.wait_reconnected(generation, AGAIN_S)
            check_cancelled()

    async def at_the_end(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """As ``through_reconnects``, of a process that is killed soon. Raises BusError too where the time is over."""
        try:
            return await within(timeout_s, self.through_reconnects(work))
        except TimeoutError as error:
            raise BusError("the bus does not answer") from error

    async def _done_or_restored(self, doing: asyncio.Future[Any]) -> None:
        """Return when it is done, or the connection is restored."""
        with self._news() as (news, tell):
            doing.add_done_callback(tell)
            await news

    @contextlib.contextmanager
    def _news(self) -> Iterator[tuple[asyncio.Future[None], Callable[..., None]]]:
        """Done once the second is called, or the connection is restored."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: object = None) -> None:
            if not news.done():
                news.set_result(None)

        with self.telling_reconnects(tell):
            yield news, tell

    @contextlib.contextmanager
    def telling_reconnects(self, tell: Callable[[], None]) -> Iterator[None]:
        """``tell`` is called as soon as the connection is restored."""
        self._on_reconnect[tell] = None
        try:
            yield
        finally:
            del self._on_reconnect[tell]

    def _count_dropped(self, subject: str) -> None:
        self.num_dropped += 1
        if not self._dropped:
            asyncio.get_running_loop().call_later(DROPPED_PERIOD_S, self._tell_dropped)
        self._dropped[subject] = self._dropped.get(subject, 0) + 1

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, {}
        for subject, num_messages in dropped.items():
            what = {"subject": subject, "messages": num_messages}
            logger.error("messages dropped: they came faster than they were handled", extra=what)

    async def close(self) -> None:
        """Let handlers finish, flush what was published, close; a server that is silent is waited for no longer than
        CLOSE_S."""
        if self._client.is_closed:
            return
        try:
            with contextlib.suppress(*FAILURES, RuntimeError):
                await within(CLOSE_S, self._client.finish())
        finally:
            await self._client.abandon()


def _access(client: FencedClient, address: BusAddress) -> dict[str, Any]:
    """nats-py's options for what the address asks for; the client is told the rest. Raises ConfigError."""
    client.credentials = address.credentials()
    client.requires_tls = address.is_encrypted
    options: dict[str, Any] = {"tls": address.tls_context()} if address.is_encrypted else {}
    if client.credentials is not None:
        options["signature_cb"] = client.show
        if address.role is not None:
            options["inbox_prefix"] = inbox_prefix(address.role)
    return options


def _why_not(address: BusAddress, name: str, error: str) -> str:
    """Nobody could be connected, and what to look at."""
    if _is_not_let_in(error):
        as_whom = f"{name} with {address.creds}" if address.creds else f"{name}, which has no credentials"
        return f"the NATS server at {address.shown} does not let in {as_whom}: check --nats-creds"
    return f"no NATS server answers at {address.shown} ({error}); start one or check --nats"


def _is_not_let_in(error: str) -> bool:
    return any(words in error.lower() for words in NOT_LET_IN)


class failing_as(keeping_cancellation):
    """Raises BusError, with what was being done, for any failure of the bus inside; TooLargeForBusError for a message
    that it never takes, NoRoomOnBusError for one that it has no room for. No cancellation is lost inside."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        if isinstance(error, nats.errors.MaxPayloadError):
            raise TooLargeForBusError(f"{self._doing}: the message is over the bus's limit") from error
        if isinstance(error, nats.js.errors.ServiceUnavailableError) and error.code is None:  # nobody listens
            raise BusError(f"{self._doing}: {NO_JETSTREAM}") from error
        if isinstance(error, nats.js.errors.APIError) and error.err_code in STORE_IS_FULL:
            raise NoRoomOnBusError(f"{self._doing}: {NO_ROOM_IN_WORDS}") from error
        if isinstance(error, FAILURES):
            raise BusError(f"{self._doing}: {str(error) or repr(error)}") from error
