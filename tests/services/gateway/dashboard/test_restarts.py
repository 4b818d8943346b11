"""Which pings say that a service began anew."""

from services.gateway.dashboard.restarts import GONE_S, MAX_SILENT, Restarts
from shared.protocol.services import ServiceStatus

PERIOD_S = 10.0


def answer(name: str, pid: int, started_s: float = 0.0) -> ServiceStatus:
    return ServiceStatus(name, pid, "ok", {}, started_s)


class Pings:
    """At a period, after another."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.now_s = 1000.0

    def heard(self, *answers: ServiceStatus) -> None:
        self.now_s += PERIOD_S
        self.restarts.heard(answers, self.now_s)

    def gateways(self, *pids: int) -> int:
        """How often they began anew, by what came on one more ping."""
        self.heard(*(answer("gateway", pid) for pid in pids))
        return self.restarts.counts["gateway"]


def test_one_in_the_place_of_another_is_a_restart() -> None:
    pings = Pings()
    for pid, started_s in ((1, 10.0), (1, 10.0), (1, 25.0), (7, 30.0)):  # also in a container, where pids are alike
        pings.heard(answer("predictor", pid, started_s))
    assert pings.restarts.counts == {"predictor": 2}


def test_one_of_several_begins_anew() -> None:
    pings = Pings()
    told = [(1, 2, 3), (1, 3), (1, 3, 4), (1, 3, 5), (1, 5), (5, 6, 7)]
    assert [pings.gateways(*pids) for pids in told] == [0, 0, 1, 2, 2, 4]


def test_one_that_comes_beside_another_is_none() -> None:
    pings = Pings()
    pings.heard(answer("offline-queue", 1))
    pings.heard(answer("offline-queue", 1), answer("offline-queue", 2))
    pings.heard(answer("offline-queue", 1))
    pings.heard(answer("offline-queue", 2), answer("gateway", 3))
    assert pings.restarts.counts == {"gateway": 0, "offline-queue": 0}
    pings.heard(answer("offline-queue", 4))
    assert pings.restarts.counts["offline-queue"] == 1


def test_an_upgrade_of_several_is_none() -> None:
    """Each new one comes before an old one goes; in what order they answer a ping says nothing."""
    pings, old, new = Pings(), [1, 2, 3, 4, 5, 6], []
    pings.gateways(*old)
    for pid in range(11, 17):
        new.append(pid)
        assert pings.gateways(*old, *new) == 0
        del old[0]
        assert pings.gateways(*new, *old) == 0
    assert pings.gateways(11, 12, 13, 14, 15) == 0 and pings.gateways(11, 12, 13, 14, 15, 17) == 1


def test_more_at_a_peak_and_fewer_after_it_are_none() -> None:
    pings = Pings()
    pings.gateways(1, 2, 3, 4, 5, 6)
    for num_left in range(5, 1, -1):
        pings.gateways(*range(1, num_left + 1))
        pings.now_s += GONE_S
    assert pings.gateways(1, 2, 7, 8, 9, 10) == 0


def test_names_that_come_and_go_leave_no_more_than_some() -> None:
    pings = Pings()
    for number in range(3 * MAX_SILENT):
        for pid in (1, 2):
            pings.heard(answer("gateway", 1), answer(f"executor-{number}", pid))
    last = {f"executor-{number}": 1 for number in range(2 * MAX_SILENT - 1, 3 * MAX_SILENT)}
    assert pings.restarts.counts == {"gateway": 0, **last}
