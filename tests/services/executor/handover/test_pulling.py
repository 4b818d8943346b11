"""Who asks whom for offline requests, and which of them go."""

from msgspec.structs import replace

from services.executor.handover.peers import Peers
from services.executor.handover.pulling import Pulling
from services.executor.handover.sim_link import SimLink
from shared.protocol.executors import ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.handover import Place, Pull
from shared.replica.replica import Replica
from shared.scheduling.placement.pulling import AWAITED_S
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.simulation.link import Link
from shared.text.tokenizer import Tokenizer
from tests.shared.replica.test_handover import make_rig, request_of
from tests.shared.replica.test_look_ahead import SPEC, Overlapped
from tests.shared.replica.test_readers import ManualClock
from tests.shared.replica.test_wanted import MODEL, POLICY, make_replica

OWN = Place("own", "one")
NO_TIME = Link(latency_s=0.0)
STRICT = ExecutorInfo("own", "one", 1, "key", SPEC, 16, 64, Strategy.of("ooco"), role=Role.STRICT, kv_link=SimLink.kind)


def pulling_of(replica: Replica, clock: ManualClock, link: SimLink) -> tuple[Pulling, Peers]:
    peers = Peers(OWN, SPEC.model, clock)
    return Pulling(OWN, replica, peers, link, lambda: (POLICY, MODEL), clock), peers


def relaxed(executor_id: str, num_running: int) -> Heartbeat:
    """With so many offline requests that run."""
    info = replace(STRICT, executor_id=executor_id, role=Role.RELAXED)
    return Heartbeat(info, ExecutorCounters(), False, 0, 0, 0, num_running, 10)


def decoding(tokenizer: Tokenizer, num_requests: int) -> Overlapped:
    """Offline requests that generate."""
    rig = make_rig(tokenizer)
    for number in range(num_requests):
        rig.replica.submit(request_of(f"r{number}", Kind.OFFLINE, prompt=10, first=100 * number))
    while len(rig.replica.handovers.decoding(Kind.OFFLINE)) < num_requests:
        assert rig.begin()
        rig.finish()
    return rig


def test_no_request_is_for_two_who_ask(tokenizer: Tokenizer) -> None:
    rig = decoding(tokenizer, 5)
    pulling, _ = pulling_of(rig.replica, ManualClock(), SimLink(OWN, SPEC, NO_TIME))
    first, second = Place("first", "one"), Place("second", "one")
    pulling.asked(Pull(first, 12, 3, 100))
    pulling.asked(Pull(second, 12, 3, 100))
    takers = [pulling.who_asked(each.request.request_id) for each in rig.replica.handovers.collect()]
    assert takers == [first, first, first, second, second]


def test_who_lost_its_kv_before_it_could_go_may_be_asked_for_again(tokenizer: Tokenizer) -> None:
    rig = decoding(tokenizer, 1)
    pulling, _ = pulling_of(rig.replica, ManualClock(), SimLink(OWN, SPEC, NO_TIME))
    first, second = Place("first", "one"), Place("second", "one")
    pulling.asked(Pull(first, 12, 1, 100))
    (request,) = rig.replica.table.running(Kind.OFFLINE).values()
    rig.replica._kv.lose(request)
    assert rig.replica.handovers.collect() == []
    while not rig.replica.handovers.decoding(Kind.OFFLINE):
        assert rig.begin()
        rig.finish()
    pulling.forget_ended()
    pulling.asked(Pull(second, 12, 1, 100))
    assert [pulling.who_asked(each.request.request_id) for each in rig.replica.handovers.collect()] == [second]


def test_what_cannot_run_there_is_not_sent(tokenizer: Tokenizer) -> None:
    """It was held, offered and refused, in the place of one that can."""
    rig = make_rig(tokenizer, adapters=("sql",))
    rig.replica.submit(request_of("sql", Kind.OFFLINE, prompt=12, adapter="sql"))
    rig.replica.submit(request_of("plain", Kind.OFFLINE, prompt=10, first=100))
    while len(rig.replica.handovers.decoding(Kind.OFFLINE)) < 2:
        assert rig.begin()
        rig.finish()
    pulling, peers = pulling_of(rig.replica, ManualClock(), SimLink(OWN, SPEC, NO_TIME))
    taker = Place("taker", "one")
    peers.hear(Heartbeat(replace(STRICT, executor_id="taker"), ExecutorCounters(), False, 0, 0, 0, 0, 10))
    pulling.asked(Pull(taker, 14, 1, 100))
    assert [each.request.request_id for each in rig.replica.handovers.collect()] == ["plain"]


async def test_one_pull_at_a_time_unless_nothing_comes() -> None:
    """What was asked for is waited for, so long."""
    clock, link = ManualClock(), SimLink(OWN, SPEC, NO_TIME)
    pulling, peers = pulling_of(make_replica(), clock, link)
    peers.hear(relaxed("giver", 3))
    assert pulling.next_pull(STRICT, []) is None, "it is not connected"
    await link.connect(replace(link.address, place=Place("giver", "one")))
    pulled = pulling.next_pull(STRICT, [])
    assert pulled is not None and pulled[0].info.executor_id == "giver"
    clock.now_s += 0.99 * AWAITED_S
    assert pulling.next_pull(STRICT, []) is None
    clock.now_s += 0.02 * AWAITED_S
    pulled = pulling.next_pull(STRICT, [])
    assert pulled is not None
    for _ in range(pulled[1].num_requests):
        assert pulling.next_pull(STRICT, []) is None
        pulling.came()
    assert pulling.next_pull(STRICT, []) is not None


async def test_the_relaxed_executor_with_most_offline_requests_that_run_is_asked() -> None:
    """Alg. 1 of OOCO leaves open which is (line 13). That one has most to choose from (line 14)."""
    link = SimLink(OWN, SPEC, NO_TIME)
    pulling, peers = pulling_of(make_replica(), ManualClock(), link)
    for executor_id, num_running in (("few", 2), ("most", 5), ("some", 3), ("none", 0)):
        peers.hear(relaxed(executor_id, num_running))
        await link.connect(replace(link.address, place=Place(executor_id, "one")))
    pulled = pulling.next_pull(STRICT, [])
    assert pulled is not None and pulled[0].info.executor_id == "most"
