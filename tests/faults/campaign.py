"""Rounds of load and faults, each of which ends with calm and a check."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tests.checker.check import violations
from tests.checker.history import Ended, Event
from tests.checker.violation import Limits, Violation
from tests.faults.calm import become_well, left_over
from tests.faults.load import batches, files, keys, streams
from tests.faults.load.client import Clients
from tests.faults.load.questions import Question, Questions
from tests.faults.nemesis import AT_ONCE, Nemesis
from tests.faults.plan import Planned
from tests.faults.stack.stack import KEY, Stack
from tests.faults.summary import Summary

NUM_STREAMS, NUM_BATCHES, NUM_FILES = 6, 2, 1  # clients of each kind
ROUND = 40  # events
CALM_STREAMS = 2  # of each kind, at each gateway
IDLE_LINES = 20  # of a batch that has all to itself
LEARNT_AT_ONCE = 8  # questions


class Campaign:
    """``tell`` hears each event when it has ended; ``at_once``: so many of them go on."""

    def __init__(self, stack: Stack, seed: int, tell: Callable[[Event], None], at_once: int = AT_ONCE) -> None:
        self.summary = Summary()
        self._stack = stack
        self._nemesis = Nemesis(stack, tell, at_once)
        self._rng = random.Random(seed)
        self.questions = Questions.of(stack.shape.engine)
        self._limits = Limits()

    async def begin(self, right: Mapping[Question, str] | None = None) -> None:
        """Wait until the stack is there, and have it say what is ``right``, where no other has said so. Raises
        AssertionError where it does not."""
        missing = await become_well(self._stack)
        assert not missing, missing
        if right is None:
            await self._learn()
        else:
            self.questions.right.update(right)

    async def _learn(self) -> None:
        clients = self._clients()
        places = asyncio.Semaphore(LEARNT_AT_ONCE)

        async def learn(question: Question) -> None:
            async with places:
                first, *others = [await streams.ask(clients, question, server, "") for server in clients.urls]
            assert first.ended is Ended.DONE, first
            assert all(other.text == first.text for other in others), (first, others)
            self.questions.right[question] = first.text

        await asyncio.gather(*(learn(question) for question in self.questions.all))
        self._forget()
        self._stack.takers.clear()

    async def run(self, planned: Sequence[Planned]) -> list[Violation]:
        """Round by round, until all events are over or something is wrong; that is in the history then."""
        for start in range(0, len(planned), ROUND):
            found = await self._round(planned[start : start + ROUND])
            self.summary.add(self._stack.history, found)
            self.summary.takers = self._stack.takers
            if found:
                return found
            self._forget()
        return []

    async def _round(self, planned: Sequence[Planned]) -> list[Violation]:
        clients, contents, known = self._clients(), dict[str, bytes](), dict[str, str]()
        history = self._stack.history
        history.calm_s = history.idle_s = float("inf")
        load = [asyncio.create_task(each) for each in self._load(clients, contents, known)]
        try:
            await self._nemesis.run(planned)
            missing = await become_well(self._stack)
            history.calm_s = self._stack.now()
            clients.is_over.set()
            _, hanging = await asyncio.wait(load, timeout=self._limits.stream_s)
        finally:
            for client in load:
                client.cancel()
            ended = await asyncio.gather(*load, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        if missing or hanging:  # nothing more to be seen
            history.left_over = missing or {"clients that hang": len(hanging)}
        else:
            await self._look(clients, contents, known)
        return self._check()

    def _load(
        self, clients: Clients, contents: dict[str, bytes], known: dict[str, str]
    ) -> list[Coroutine[Any, Any, None]]:
        name = f"{self._stack.now():.0f}"  # names of earlier rounds are taken
        return [
            *(streams.be_client(clients, self.questions) for _ in range(NUM_STREAMS)),
            *(batches.be_client(clients, self.questions, f"batch-{name}-{n}") for n in range(NUM_BATCHES)),
            *(files.be_client(clients, f"file-{name}-{n}", contents) for n in range(NUM_FILES)),
            keys.be_client(clients, self._stack.bus, f"key-{name}", known),
        ]

    async def _look(self, clients: Clients, contents: dict[str, bytes], known: dict[str, str]) -> None:
        """At what there is when all is well."""
        history = self._stack.history
        at_each = [server for server in clients.urls for _ in range(CALM_STREAMS)]
        await asyncio.gather(*(streams.ask_each(clients, self.questions, [server]) for server in at_each))
        history.left_over = await left_over(self._stack, clients, self._limits)
        history.idle_s = self._stack.now()
        await streams.ask_each(clients, self.questions, clients.urls)
        small = batches.plain(self.questions, clients.rng, IDLE_LINES)
        await batches.submit(clients, small, f"batch-idle-{history.idle_s:.0f}")
        for server in clients.urls:
            await files.list_all(clients, server)
            await batches.list_all(clients, server)
        kept = [file for file in history.files if file.file_id in contents]
        await files.read_everywhere(clients, contents)
        await asyncio.sleep(max(0.0, history.calm_s + self._limits.key_settles_s - self._stack.now()))
        for key in history.keys:
            if key.name in known:
                await keys.try_everywhere(clients, key, known[key.name])
        for file in kept:  # the next round's lists are short
            await clients.ask_until("DELETE", f"/v1/files/{file.file_id}")

    def _check(self) -> list[Violation]:
        history = self._stack.history
        history.over_s = self._stack.now()
        history.unforeseen += [each for member in self._stack.members.values() for each in member.take_tracebacks()]
        for stream in history.streams:
            until_s = history.over_s if stream.ended_s is None else stream.ended_s
            stream.excuse = self._stack.excuse(stream.server, stream.sent_s, until_s, stream.status is not None)
        return violations(history, self._limits)

    def _clients(self) -> Clients:
        return Clients(self._stack.urls, KEY, self._stack.history, self._stack.now, self._rng)

    def _forget(self) -> None:
        """What has been checked."""
        history = self._stack.history
        for seen in (
            history.streams,
            history.batches,
            history.files,
            history.keys,
            history.events,
            history.server_errors,
            history.unforeseen,
        ):
            seen.clear()
        for process in history.processes:
            del process.starts[:-1]
        names = {member.record.name for member in self._stack.members.values()}
        history.processes[:] = [process for process in history.processes if process.name in names]
