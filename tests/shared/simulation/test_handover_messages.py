"""Who is asked, who is offered what and for how long: handovers between executors whose messages the test delivers."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from shared.protocol.handover import Carried, Place, Taken
from shared.scheduling.placement.pulling import AWAITED_S, Preference
from shared.scheduling.request import Kind
from shared.simulation.events import Events
from shared.simulation.executor import VirtualExecutor
from shared.simulation.handovers import VirtualHandovers
from shared.simulation.link import Link
from shared.simulation.setup import EPOCH, ExecutorSetup, in_pools
from tests.shared.simulation.test_executor import request
from tests.shared.simulation.test_handovers import Watched, large, online
from tests.shared.simulation.test_system import make_offline, make_setup

WANTED = Preference(num_tokens=120, num_requests=2, most_tokens=400)


class Delivered:
    """Handovers of a system; of the messages that are sent none arrives before ``deliver``."""

    def __init__(self, setups: Sequence[ExecutorSetup], link: Link = Link(latency_s=0.0)) -> None:
        self.run = Watched(setups)
        self.events: Events = self.run.system.events
        self.executors = self.run.system.executors
        self.sent: list[Callable[[], None]] = []
        self.taken: list[Taken] = []
        self.handovers = VirtualHandovers(self.executors, link, self.events, self.sent.append, self.taken.append)

    def run_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.events.run_next()

    def deliver(self) -> None:
        messages = list(self.sent)
        self.sent.clear()
        for arrive in messages:
            arrive()


class Pulled(Delivered):
    """The last executor is relaxed and has offline requests that generate; it notes who is asked for."""

    def __init__(self, num_strict: int, num_offline: int = 6) -> None:
        super().__init__(in_pools(large(make_setup("ooco", budget_ms=30.0)), num_strict + 1, num_strict))
        self.asked: list[list[str]] = []
        own = self.run.system._handovers
        own.pull = lambda taker_id, wanted: None  # type: ignore[method-assign]
        self.giver = self.executors[f"executor-{num_strict}"]
        self.run.system.queue.add([make_offline(number) for number in range(num_offline)])
        self.run_until(lambda: len(self.decoding) >= min(4, num_offline))
        self.giver.ask = self._ask  # type: ignore[method-assign]

    def _ask(self, request_ids: Sequence[str]) -> None:
        self.asked.append(list(request_ids))
        self.giver.replica.handovers.ask(request_ids)

    @property
    def decoding(self) -> list[str]:
        return [request_id for request_id, _ in self.giver.replica.handovers.decoding(Kind.OFFLINE)]


def test_who_has_asked_waits_for_what_comes_of_it() -> None:
    pulled = Pulled(num_strict=1)
    asked_s = pulled.events.now_s
    for later_s, num_sent in ((0.0, 1), (0.5 * AWAITED_S, 1), (AWAITED_S, 2), (1.5 * AWAITED_S, 2), (2 * AWAITED_S, 3)):
        pulled.events.advance(asked_s + later_s)
        pulled.handovers.pull("executor-0", WANTED)
        assert len(pulled.sent) == num_sent, later_s


def test_who_is_told_of_nothing_may_ask_at_once() -> None:
    pulled = Pulled(num_strict=1, num_offline=0)
    for _ in range(3):
        pulled.handovers.pull("executor-0", WANTED)
        assert len(pulled.sent) == 1
        pulled.deliver()
    assert pulled.asked == [[]] * 3


def test_nobody_is_asked_for_twice() -> None:
    pulled = Pulled(num_strict=2)
    decoding = set(pulled.decoding)
    for taker_id in ("executor-0", "executor-1"):
        pulled.handovers.pull(taker_id, WANTED)
    pulled.deliver()
    first, second = pulled.asked
    assert first and second and not set(first) & set(second) and {*first, *second} <= decoding


@pytest.mark.parametrize("most", ["executor-1", "executor-2"])
def test_the_relaxed_executor_with_most_offline_requests_that_run_is_asked(most: str) -> None:
    """Alg. 1 of OOCO leaves open which is (line 13). That one has most to choose from (line 14)."""
    asking = Delivered(in_pools(large(make_setup("ooco", budget_ms=30.0)), 3, 1))
    asking.run.system._handovers.pull = lambda taker_id, wanted: None  # type: ignore[method-assign]
    relaxed = {each: asking.executors[each] for each in ("executor-1", "executor-2")}
    (other,) = relaxed.keys() - {most}

    def num_running(executor_id: str) -> int:
        return len(relaxed[executor_id].replica.table.running(Kind.OFFLINE))

    asking.run.system.queue.add([make_offline(number) for number in range(20)])
    asking.run_until(lambda: num_running(most) > num_running(other) > 0)
    asked: list[str] = []
    for executor_id, executor in relaxed.items():
        executor.ask = lambda request_ids, name=executor_id: asked.append(name)  # type: ignore[misc]
    asking.handovers.pull("executor-0", WANTED)
    asking.deliver()
    assert asked == [most]


class Pushed(Delivered):
    """The last executor is relaxed and holds online requests for whoever is to have them."""

    def __init__(self, num_strict: int, num_online: int, link: Link = Link(latency_s=0.0)) -> None:
        setups = in_pools(large(make_setup("fcfs")), num_strict + 1, num_strict)
        super().__init__(setups, link)
        self.carried: list[Carried] = []
        own = self.run.system._handovers
        own.give = lambda giver_id, carried: self.carried.append(carried)  # type: ignore[method-assign]
        self.giver_id = f"executor-{num_strict}"
        for number in range(num_online):
            self.run.system.submit(request(number, 40, 50))
        self.run_until(lambda: len(self.carried) == num_online)

    @property
    def giver(self) -> VirtualExecutor:
        return self.executors[self.giver_id]

    def give_all(self) -> None:
        for carried in self.carried:
            self.handovers.give(self.giver_id, carried)

    def held_by(self, executor_id: str) -> int:
        return len(self.executors[executor_id].replica.table.running(Kind.ONLINE))


def test_what_is_on_its_way_to_an_executor_counts_there() -> None:
    pushed = Pushed(num_strict=2, num_online=4)
    pushed.give_all()
    pushed.deliver()
    pushed.run_until(lambda: len(pushed.taken) == 4)
    assert sorted(taken.taker.executor_id for taken in pushed.taken) == ["executor-0"] * 2 + ["executor-1"] * 2
    assert {taken.giver for taken in pushed.taken} == {Place("executor-2", EPOCH)}


def test_room_is_given_once() -> None:
    """For one of 41 tokens, with the one that it has next, and not for two."""
    pushed = Pushed(num_strict=1, num_online=2)
    takers = pushed.handovers._takers
    takers["executor-0"] = replace(takers["executor-0"], num_free_tokens=41 + 40)
    pushed.give_all()
    assert len(pushed.sent) == 1, "the other goes on where it is"
    assert pushed.held_by(pushed.giver_id) == 2


def test_kv_takes_its_time_on_the_link_and_is_the_takers_then() -> None:
    """Three blocks of 16 tokens hold 40."""
    pushed = Pushed(num_strict=1, num_online=1, link=Link(s_per_token=0.01, latency_s=0.5))
    offered_s = pushed.events.now_s
    pushed.give_all()
    pushed.deliver()
    assert pushed.taken == []
    pushed.run_until(lambda: bool(pushed.taken))
    assert pushed.events.now_s == offered_s + 0.5 + 48 * 0.01
    assert pushed.held_by("executor-0") == 1
    pushed.deliver()
    assert pushed.held_by(pushed.giver_id) == 0


def test_an_offer_that_is_refused_is_told_to_who_waits_for_it() -> None:
    """It asks anew at once, and the request goes on at its giver."""
    pulled = Pulled(num_strict=1)
    pulled.handovers.pull("executor-0", WANTED)
    pulled.deliver()
    (chosen,) = pulled.asked
    del pulled.giver.ask
    carried: list[Carried] = []
    pulled.run.system._handovers.give = lambda giver_id, each: carried.append(each)  # type: ignore[method-assign]
    pulled.giver.ask(chosen)
    pulled.run_until(lambda: len(carried) == len(chosen))
    taker = pulled.executors["executor-0"]
    taker.replica.handovers.reserve = lambda each: "no room"  # type: ignore[method-assign]
    for each in carried:
        pulled.handovers.give(pulled.giver.info.executor_id, each)
    pulled.handovers.pull("executor-0", WANTED)
    pulled.deliver()
    assert len(chosen) > 0 and len(pulled.sent) == len(chosen), "that they are released, and no more"
    pulled.handovers.pull("executor-0", WANTED)
    assert len(pulled.sent) == len(chosen) + 1
    pulled.deliver()
    assert set(chosen) <= set(pulled.giver.replica.table.running(Kind.OFFLINE))


@pytest.mark.parametrize(("preset", "asks"), [("fcfs", False), ("ooco", True)])
def test_only_executors_of_a_strategy_that_pulls_ask(preset: str, asks: bool) -> None:
    run = Watched(in_pools(large(make_setup(preset)), 2, 1))
    asking: list[str] = []
    run.system._handovers.pull = lambda taker_id, wanted: asking.append(taker_id)  # type: ignore[method-assign]
    run.system.queue.add([make_offline(number) for number in range(10)])
    run.play(online(count=10))
    assert (set(asking) == {"executor-0"}) is asks and len(run.ended) == 20
