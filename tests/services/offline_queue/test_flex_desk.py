"""Flex requests beside batches in one pool: who is refused, whose turn it is, and what is forgotten when."""

from services.offline_queue.flex_desk import NEWCOMER_SHARE, WINDOW_S, FlexDesk
from services.offline_queue.hearing import Hearing
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol.offline.flex import HOLD_PERIOD_S, FlexHeld, FlexSubmit, flex_batch
from shared.protocol.offline.requests import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.request import Kind
from tests.services.offline_queue.batch_desk import ManualClock

GATEWAY = "gateway-flex"


class Rig:
    """A pool whose fairness asks the desk first, as in the service."""

    def __init__(self, max_requests: int = 4, serves_offline: bool = True) -> None:
        self.clock = ManualClock()
        self.discarded: list[tuple[str, list[str]]] = []
        order = FairShare(FcfsOrder(), self.share_of, slack_tokens=1)
        self.pool = OfflinePool(order, lambda: None, lambda *held: self.discarded.append(held))
        self.bus_answers = True
        hearing = Hearing(lambda: self.bus_answers, self.clock)
        self.desk = FlexDesk(self.pool, self.clock, hearing, max_requests, serves_offline)

    def wait(self, num_looks: int) -> None:
        """So many looks at who is silent, 2 seconds apart."""
        for _ in range(num_looks):
            self.clock.now_s += HOLD_PERIOD_S
            self.desk.drop_silent()

    def share_of(self, batch_id: str) -> Share:
        return self.desk.share_of(batch_id) or Share("batcher")

    def submit(self, name: str, client: str = "a", attempt: int = 1, lost: int = 0, output: int = 0) -> str:
        """The refusal."""
        request = GenerateRequest(
            f"{flex_batch(client)}.{name}-{attempt}",
            Kind.OFFLINE,
            [1, 2, 3, 4],
            SamplingParams(max_tokens=8),
            arrival_s=self.clock.unix_s(),
            gateway_id=GATEWAY,
            output_token_ids=list(range(output)),
        )
        replaces = f"{flex_batch(client)}.{name}-{attempt - 1}" if attempt > 1 else ""
        refusal = self.desk.submit(FlexSubmit(request, client, 1.0, replaces, lost)).refusal
        self.pool.check_integrity()
        return refusal

    def hold(self, *request_ids: str) -> list[str]:
        """What is lost."""
        return self.desk.hold(FlexHeld(GATEWAY, list(request_ids))).lost

    def waiting(self) -> list[str]:
        return [request.request_id for request in self.pool.in_order()]


def test_the_limit_refuses_who_has_something_and_lets_newcomers_in_up_to_twice_of_it() -> None:
    rig = Rig(max_requests=2)
    assert [rig.submit(name) for name in "xy"] == ["", ""]
    assert "2 flex requests" in rig.submit("z")
    assert [rig.submit(name, client=name) for name in "bc"] == ["", ""]
    assert "4 flex requests" in rig.submit("d", client="d")
    assert len(rig.desk) == 2 * NEWCOMER_SHARE
    rig.desk.drop(["flex-a.x-1", "flex-a.y-1", "flex-a.unknown-1"])
    assert len(rig.desk) == 2 and rig.submit("z") == ""


def test_a_server_without_offline_work_refuses_all() -> None:
    assert "no offline work" in Rig(serves_offline=False).submit("x")
    assert "0 flex requests" in Rig(max_requests=0).submit("x")


def test_an_attempt_replaces_the_one_before_whatever_the_limit_and_keeps_its_tokens() -> None:
    rig = Rig(max_requests=1)
    rig.submit("x")
    rig.pool.take("flex-a.x-1", "executor-0")
    assert rig.submit("x", attempt=2, output=3) == ""
    assert rig.discarded == [("executor-0", ["flex-a.x-1"])]
    rig.desk.drop(["flex-a.x-1"])
    assert (rig.waiting(), len(rig.desk)) == (["flex-a.x-2"], 1)
    (request,) = rig.pool.in_order()
    assert (request.num_tokens, request.max_total_tokens) == (7, 12)
    assert rig.pool.take("flex-a.x-2", "executor-1").output_token_ids == [0, 1, 2]


def test_one_that_was_there_when_executors_died_is_a_suspect() -> None:
    rig = Rig()
    rig.submit("x", attempt=2, lost=1)
    assert not rig.pool.is_suspect("flex-a.x-2")
    rig.submit("x", attempt=3, lost=2)
    assert rig.pool.is_suspect("flex-a.x-3")


def test_what_a_gateway_does_not_name_is_dropped_and_what_is_unknown_is_lost() -> None:
    rig = Rig()
    rig.submit("x")
    rig.submit("y")
    assert rig.hold("flex-a.y-1", "flex-a.gone-1") == ["flex-a.gone-1"]
    assert (rig.waiting(), len(rig.desk)) == (["flex-a.y-1"], 1)


def test_one_that_ended_without_its_gateway_hearing_of_it_is_lost_at_the_second_look() -> None:
    rig = Rig()
    rig.submit("x")
    rig.pool.take("flex-a.x-1", "executor-0")
    assert [rig.hold("flex-a.x-1") for _ in range(3)] == [[], [], []]
    rig.pool.settle("executor-0", [], ["flex-a.x-1"])
    assert [rig.hold("flex-a.x-1") for _ in range(2)] == [[], ["flex-a.x-1"]]


def test_requests_of_a_gateway_that_is_silent_are_dropped() -> None:
    rig = Rig()
    rig.submit("x")
    rig.pool.take("flex-a.x-1", "executor-0")
    rig.submit("y")
    rig.wait(3)
    assert len(rig.desk) == 2
    rig.clock.now_s += 0.1
    rig.desk.drop_silent()
    assert (len(rig.desk), len(rig.pool)) == (0, 0)
    assert rig.discarded == [("executor-0", ["flex-a.x-1"])]
    assert rig.desk.share_of("flex-a") is None


def test_a_gateway_is_not_silent_for_what_nobody_could_hear() -> None:
    """The bus was away; then the offline-queue stood still. Each time a gateway has its whole time again."""
    rig = Rig()
    rig.submit("x")
    rig.wait(1)
    rig.bus_answers = False
    rig.wait(10)
    rig.bus_answers = True
    rig.wait(3)
    rig.clock.now_s += 100.0
    rig.wait(3)
    assert len(rig.desk) == 1
    rig.wait(2)
    assert len(rig.desk) == 0


def test_clients_take_turns_with_each_other_and_with_batches() -> None:
    rig = Rig(max_requests=8)
    batch = [
        GenerateRequest(f"batch_1.{line}", Kind.OFFLINE, [1, 2, 3, 4], SamplingParams(max_tokens=8), 0.0)
        for line in range(3)
    ]
    rig.pool.add([OfflineRequest(request, "batch_1", 1, "", "m") for request in batch])
    for name in "xyz":
        rig.submit(name)
    rig.submit("u", client="b")
    clients = [request_id.partition(".")[0] for request_id in rig.waiting()]
    assert clients == ["flex-a", "flex-b", "batch_1", "flex-a", "batch_1", "flex-a", "batch_1"]


def test_the_longer_the_oldest_waits_the_more_urgent_its_client() -> None:
    rig = Rig()
    rig.submit("x")
    assert rig.share_of("flex-a") == Share("a", 1.0, 1.0, goes_first=True)
    rig.clock.now_s += 0.75 * WINDOW_S
    rig.submit("y")
    assert rig.share_of("flex-a").urgency == 2.0
    rig.desk.drop(["flex-a.x-1"])
    assert rig.share_of("flex-a").urgency == 1.0
