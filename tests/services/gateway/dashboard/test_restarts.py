"""Which pings say that a service began anew."""

from services.gateway.dashboard.restarts import MAX_SILENT, Restarts
from shared.protocol.services import ServiceStatus


def answer(name: str, pid: int, started_s: float = 0.0) -> ServiceStatus:
    return ServiceStatus(name, pid, "ok", {}, started_s)


def test_one_in_the_place_of_another_is_a_restart() -> None:
    restarts = Restarts()
    for pid, started_s in ((1, 10.0), (1, 10.0), (1, 25.0), (7, 30.0)):  # also in a container, where pids are alike
        restarts.heard([answer("predictor", pid, started_s)])
    assert restarts.counts == {"predictor": 2}


def test_one_that_comes_beside_another_is_none() -> None:
    restarts = Restarts()
    restarts.heard([answer("offline-queue", 1)])
    restarts.heard([answer("offline-queue", 1), answer("offline-queue", 2)])
    restarts.heard([answer("offline-queue", 1)])
    restarts.heard([answer("offline-queue", 2), answer("gateway", 3)])
    assert restarts.counts == {"gateway": 0, "offline-queue": 0}
    restarts.heard([answer("offline-queue", 2), answer("offline-queue", 4)])
    assert restarts.counts["offline-queue"] == 1


def test_names_that_come_and_go_leave_no_more_than_some() -> None:
    restarts = Restarts()
    for number in range(3 * MAX_SILENT):
        for pid in (1, 2):
            restarts.heard([answer("gateway", 1), answer(f"executor-{number}", pid)])
    last = {f"executor-{number}": 1 for number in range(2 * MAX_SILENT - 1, 3 * MAX_SILENT)}
    assert restarts.counts == {"gateway": 0, **last}
