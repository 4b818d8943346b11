"""Three hosts with a secured NATS cluster: one is lost whole and comes back, another one is cut off, and what clients
saw of it."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from shared.protocol import subjects
from tests.checker.batches import check_batches
from tests.checker.history import Ended, Stream
from tests.checker.pauses import Pauses
from tests.checker.streams import check_streams
from tests.checker.violation import Limits
from tests.cluster.stack import HOSTS, KEY, ThreeHosts
from tests.faults.load import batches, streams
from tests.faults.load.client import Clients
from tests.faults.load.questions import Question, Questions
from tests.faults.stack.hosts import may_make_hosts
from tests.integration.conftest import require_permitted

NUM_STREAMS, NUM_BATCHES, LEARNT_AT_ONCE = 6, 2, 8
BEFORE_S, LOST_S, CUT_S, AFTER_S = 8.0, 20.0, 12.0, 8.0
FELT_S = 10.0  # for which a client of a host that was away may find it so


async def learn(clients: Clients, questions: Questions) -> None:
    """What each gateway says while all is well."""
    places = asyncio.Semaphore(LEARNT_AT_ONCE)

    async def ask(question: Question) -> None:
        async with places:
            first, *others = [await streams.ask(clients, question, server, "") for server in clients.urls]
        assert first.ended is Ended.DONE and all(other.text == first.text for other in others), (first, others)
        questions.right[question] = first.text

    await asyncio.gather(*map(ask, questions.all))
    clients.history.streams.clear()


def excuse(stream: Stream, cluster: ThreeHosts) -> str:
    """A client of a gateway whose host is away sees that; no other does."""
    until_s = cluster.now() if stream.ended_s is None else stream.ended_s
    events = (each for each in cluster.history.events if each.target == stream.server)
    return next((each.kind for each in events if each.overlaps(stream.sent_s, until_s, FELT_S)), "")


def told(cluster: ThreeHosts) -> dict[str, object]:
    """The figures."""
    history, pauses = cluster.history, Pauses()
    pauses.add((stream for stream in history.streams if not stream.excuse), history.events)
    ended = [stream.ended.value for stream in history.streams if not stream.excuse]
    return {
        "streams": {each: ended.count(each) for each in sorted(set(ended))},
        "streams of gateways that were away": sum(bool(stream.excuse) for stream in history.streams),
        "batches": len(history.batches),
        "lines": sum(len(batch.lines) for batch in history.batches),
        "longest pause of a stream, s": {kind: round(seconds, 2) for kind, seconds in pauses.beside.items()},
        "events": {
            f"{each.kind} {each.target}": round((each.until_s or 0.0) - each.at_s, 1) for each in history.events
        },
    }


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.skipif(not may_make_hosts(), reason="network namespaces cannot be made here")
async def test_a_host_is_lost_another_is_cut_off_and_clients_see_pauses(tmp_path: Path) -> None:
    rng = random.Random(7)
    async with ThreeHosts(tmp_path) as cluster:
        copies = await cluster.copies()
        assert {copies[name] for name in copies if name in subjects.STORED} == {3}, copies
        clients = Clients(cluster.urls, KEY, cluster.history, cluster.now, rng)
        questions = replace(Questions.of("sim"), tools=[])
        await learn(clients, questions)
        load = [streams.be_client(clients, questions) for _ in range(NUM_STREAMS)]
        load += [batches.be_client(clients, questions, f"batch-{number}") for number in range(NUM_BATCHES)]
        cluster.history.calm_s = float("inf")
        working = [asyncio.create_task(each) for each in load]
        try:
            await asyncio.sleep(BEFORE_S)
            with cluster.event("lost", HOSTS[0]):
                await cluster.lose(HOSTS[0])
                await asyncio.sleep(LOST_S)
                cluster.bring_back(HOSTS[0])
                await cluster.become_ready()
            await asyncio.sleep(AFTER_S)
            with cluster.event("cut off", HOSTS[2]):
                cluster.cut_off(HOSTS[2])
                await asyncio.sleep(CUT_S)
                cluster.mend(HOSTS[2])
                await cluster.become_ready()
            cluster.history.calm_s = cluster.now()
            await asyncio.sleep(AFTER_S)
            clients.is_over.set()
            await asyncio.wait_for(asyncio.gather(*working), Limits().stream_s)
        finally:
            for task in working:
                task.cancel()
        cluster.history.over_s = cluster.now()
        for stream in cluster.history.streams:
            stream.excuse = excuse(stream, cluster)
        print(json.dumps(told(cluster), indent=2))
    assert [*check_streams(cluster.history, Limits()), *check_batches(cluster.history, Limits())] == []
    ended = [each for each in cluster.ended_by_themselves if not each.startswith("offline-queue")]
    assert ended == [], "only who has lost its lease may"
    require_permitted(cluster.logs)
