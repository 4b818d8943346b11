"""Messages of a version that nobody knows, on each subject that is in use."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import msgspec
import nats
import nats.errors
from nats.aio.msg import Msg

from shared.protocol import subjects
from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack
from tests.services.gateway.gateway_rig import MODEL

BUS = "the bus"
LISTENS_S = 1.5
STORED = (f"{subjects.PREFIX}.requests.", f"{subjects.PREFIX}.results.")  # what streams keep is a client's own
WORK = subjects.of_model(MODEL)
ASKED = (subjects.PING, WORK.flex, WORK.flex_drop, WORK.sample, subjects.SLO_STATUS)
BAD: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: msgspec.msgpack.encode({"version": 99, "messages": [1, 2, 3]}),
    lambda data: msgspec.msgpack.encode(["next", 1]),
    lambda data: b"\xc1" + data,
    lambda data: b'{"json": true}',
)


AWAY = (OSError, TimeoutError, RuntimeError, nats.errors.Error)  # RuntimeError: uvloop's, of a closed transport


async def _on_error(error: Exception) -> None:
    """The server is another fault's."""


class WrongVersion:
    """Each of them is none that the subject's listeners can read."""

    name, share = "wrong version", 0.6

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return (BUS,)

    async def run(self, stack: Stack, planned: Planned) -> str:
        rng, seen = random.Random(planned.draw), dict.fromkeys(ASKED, b"")
        try:
            client = await nats.connect(stack.nats_url, connect_timeout=2, allow_reconnect=False, error_cb=_on_error)
        except AWAY as error:
            return f"not sent: {error!r}"
        try:

            async def on_message(msg: Msg) -> None:
                if not msg.subject.startswith(STORED):
                    seen[msg.subject] = msg.data

            await client.subscribe(f"{subjects.PREFIX}.>", cb=on_message)
            await asyncio.sleep(LISTENS_S)
            for subject, data in sorted(seen.items()):
                await client.publish(subject, rng.choice(BAD)(data))
            await client.flush(2)
        except AWAY as error:
            return f"not all sent: {error!r}"
        finally:
            with contextlib.suppress(*AWAY):
                await client.close()
        return f"on {len(seen)} subjects"
