"""The request table against a list, and a copy of it that is told what is new."""

import math
from copy import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.orders.online.vtc import Vtc
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.factories import make_decode, make_request, make_table


class TableMachine(RuleBasedStateMachine):
    """Whoever is held is in a list, by arrival, which is sorted anew at each look; ``told`` hears of the table as a
    scheduler does of its executor's, and of some arrivals before that."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.told = RequestTable(Vtc()), RequestTable(Vtc())
        self.held: list[Request] = []
        self.first_starts: dict[str, int] = {}
        self.untold: dict[str, None] = {}  # that have come since it was told last
        self.gone: list[str] = []
        self.seen: set[str] = set()  # to run, when it was told of them
        self.missed = False  # somebody ran, and was told of without KV first
        self.count = 0

    def in_order(self, kind: Kind, is_running: bool) -> list[str]:
        """By first start, then by arrival."""
        held = [each for each in self.held if each.kind is kind and each.is_running is is_running]
        held.sort(key=lambda request: self.first_starts.get(request.request_id, math.inf))
        return [request.request_id for request in held]

    def some(self, data: st.DataObject, is_running: bool) -> Request:
        return data.draw(st.sampled_from([each for each in self.held if each.is_running is is_running]))

    def next_id(self) -> str:
        self.count += 1
        return f"r{self.count}"

    @rule(kind=st.sampled_from(Kind), client=st.sampled_from("ab"), is_heard=st.booleans())
    def come(self, kind: Kind, client: str, is_heard: bool) -> None:
        request = make_request(self.next_id(), kind, client=client)
        self.untold[request.request_id] = None
        if is_heard and kind is Kind.ONLINE:
            self.told.add(copy(request))
        self.table.add(request)
        self.held.append(request)

    @rule(kind=st.sampled_from(Kind))
    def come_running(self, kind: Kind) -> None:
        """As from another executor, with its KV."""
        request = make_decode(self.next_id(), kind)
        request.was_admitted = True
        self.table.add(request)
        self.held.append(request)
        self.first_starts[request.request_id] = self.count

    @precondition(lambda self: any(not request.is_running for request in self.held))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.start_here(self.some(data, is_running=False))

    def start_here(self, request: Request) -> None:
        request.num_blocks = request.num_computed_tokens = 1
        self.table.start(request)
        self.count += 1
        self.first_starts.setdefault(request.request_id, self.count)
        assert request.was_admitted

    @precondition(lambda self: any(request.is_running for request in self.held))
    @rule(data=st.data(), num_in_flight=st.sampled_from([HELD, 0, 1]), is_paused=st.booleans())
    def go_on(self, data: st.DataObject, num_in_flight: int, is_paused: bool) -> None:
        request = self.some(data, is_running=True)
        request.num_in_flight_tokens = num_in_flight
        is_paused = is_paused and request.kind is Kind.OFFLINE and not num_in_flight
        request.num_kept_blocks = 1 if is_paused else None

    @precondition(lambda self: any(request.is_running for request in self.held))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """An offline one may have been paused before."""
        request = self.some(data, is_running=True)
        request.num_in_flight_tokens = 0
        if request.kind is Kind.OFFLINE:
            request.num_kept_blocks = request.num_missing_slots = 5
        self.table.preempt(request)
        assert not request.is_paused and request.num_computed_tokens == request.num_missing_slots == 0

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.held))
        assert self.table.remove(request.request_id) is request
        assert self.table.remove(request.request_id) is None
        self.held.remove(request)
        self.first_starts.pop(request.request_id, None)
        self.gone.append(request.request_id)

    @rule()
    def tell(self) -> None:
        self.told.renew(self.table.copies(self.untold), self.gone, self.table.online_order.counters())
        self.untold.clear()
        self.gone.clear()
        self.check_as_the_table(self.told)
        self.seen.update(request.request_id for request in self.held if request.is_running)
        self.missed |= any(each.was_admitted and each.request_id not in self.seen for each in self.held)

    @precondition(lambda self: not self.missed and any(not request.is_running for request in self.held))
    @rule(data=st.data())
    def start_what_is_told(self, data: st.DataObject) -> None:
        """Who lost its KV has its place among the others there too."""
        self.tell()
        if self.missed:
            return
        request = self.some(data, is_running=False)
        told = self.told.get(request.request_id)
        assert told is not None and told is not request
        told.num_blocks = told.num_computed_tokens = 1
        self.told.start(told)
        self.start_here(request)
        self.check_as_the_table(self.told)

    @rule()
    def tell_all(self) -> None:
        other = RequestTable(Vtc())
        other.replace(self.table.copies(), self.table.online_order.counters())
        self.check_as_the_table(other)
        other.replace([])
        assert len(other) == 0 and list(other) == []

    def check_as_the_table(self, other: RequestTable) -> None:
        other.check_integrity()
        assert list(other) == list(self.table) and len(other) == len(self.held)
        assert all(one is not another for one, another in zip(other, self.table, strict=True))
        assert list(other.online_queue()) == list(self.table.online_queue())

    @invariant()
    def is_as_the_list(self) -> None:
        table = self.table
        table.check_integrity()
        assert len(table) == len(self.held) and "r0" not in table and table.get("r0") is None
        assert all(table.get(request.request_id) is request for request in self.held)
        for kind in Kind:
            waiting, running = (self.in_order(kind, is_running) for is_running in (False, True))
            assert (list(table.waiting(kind)), list(table.running(kind))) == (waiting, running)
            own = [request for request in self.held if request.kind is kind]
            assert table.num_blocks(kind) == sum(each.num_blocks for each in own if not each.is_paused)
            in_flight = [request for request in own if request.num_in_flight_tokens]
            assert table.num_blocks_in_flight(kind) == sum(each.num_blocks for each in in_flight)
        online = [request for request in self.held if request.kind is Kind.ONLINE]
        assert table.holds_online is any(not request.is_held for request in online)
        assert table.num_fresh == sum(not each.is_running and not each.was_admitted for each in online)


TableMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestTable = TableMachine.TestCase


def test_who_has_never_run_is_told_of_where_it_is_new() -> None:
    ran, new, known, offline = (make_request(name) for name in ("ran", "new", "known", "offline"))
    offline.kind = Kind.OFFLINE
    table = make_table(ran, known, new, offline, make_decode("running"))
    ran.num_blocks = 1
    table.start(ran)
    table.preempt(ran)
    assert [each.request_id for each in table.copies(["gone", "new", "ran"])] == ["running", "ran", "new", "offline"]
    assert [each.request_id for each in table.copies()] == ["running", "ran", "known", "new", "offline"]
