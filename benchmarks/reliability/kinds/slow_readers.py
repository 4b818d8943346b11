"""Clients that ask for streams and do not read them."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.reliability.kinds.online import Requests
from benchmarks.reliability.kinds.patterns import side_by_side
from benchmarks.reliability.kinds.tally import Tally

RECEIVE_BYTES = 4096  # that the kernel keeps for a client, so that the server's own buffers are what fills
PAUSE_S = 1.0


@dataclass(slots=True)
class SlowReaders:
    """So many, each with one stream after the other, of which it reads the status line. Served is who was cut off or
    whose ``stay_s`` were over."""

    url: str
    requests: Requests
    num_clients: int
    stay_s: float = 120.0
    tally: Tally = field(default_factory=lambda: Tally("slow readers"))

    async def run(self) -> None:
        await side_by_side(self.num_clients, self._one_client)

    async def _one_client(self) -> None:
        while True:
            await self._ask()
            await asyncio.sleep(PAUSE_S)

    async def _ask(self) -> None:
        self.tally.num_sent += 1
        try:
            status = await self._stall()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.tally.failed[type(error).__name__] += 1
            return
        if status == 200:
            self.tally.num_served += 1
        else:
            self.tally.refused[str(status)] += 1

    async def _stall(self) -> int:
        """The status of the answer."""
        request = self.requests.stream()
        target = urlsplit(self.url)
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (target.hostname, target.port))
            head = f"POST {request.path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(request.body)}\r\n\r\n"
            await loop.sock_sendall(connection, head.encode() + request.body)
            line = b""
            while b"\r\n" not in line:
                piece = await loop.sock_recv(connection, 32)
                if not piece:
                    raise asyncio.IncompleteReadError(line, None)
                line += piece
            status = int(line.split()[1])
            if status == 200:
                await asyncio.sleep(self.stay_s)
        return status
