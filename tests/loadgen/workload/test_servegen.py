"""Arrivals drawn from ServeGen's clients."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from loadgen.errors import TraceError, WorkloadError
from loadgen.workload.servegen import DAY_S, WINDOW_S, ClientWindow, ServegenDay
from tests.loadgen.conftest import shared_data

HEADER = "client,start_s,rate,cv,dist,arg1,arg2"


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def steady(rate: float, client: int = 0, shape: float = 1.0, dist: str = "Gamma") -> list[str]:
    """A client that is the same all of the first day."""
    return [f"{client},{int(WINDOW_S) * number},{rate},1,{dist},{shape},2.0" for number in range(144)]


def test_a_day_has_its_mean_rate_whatever_its_length(tmp_path: Path) -> None:
    day = ServegenDay.read(write(tmp_path / "clients.csv", *steady(3.0), *steady(0.001, client=1)), 0)
    for duration_s in (DAY_S, 2000.0):
        arrivals_s = day.arrivals_s(qps=5.0, duration_s=duration_s, seed=1)
        assert len(arrivals_s) == pytest.approx(5 * duration_s, rel=0.05)
        assert arrivals_s == sorted(arrivals_s) and arrivals_s[0] >= 0 and arrivals_s[-1] < duration_s
    assert day.arrivals_s(5.0, 2000.0, 1) == arrivals_s != day.arrivals_s(5.0, 2000.0, 2)


@pytest.mark.parametrize(
    ("dist", "shape", "deviation"), [("Gamma", 0.25, 2.0), ("Weibull", 1.0, 1.0), ("Weibull", 0.5, 5**0.5)]
)
def test_times_between_requests_are_distributed_as_the_row_says(
    tmp_path: Path, dist: str, shape: float, deviation: float
) -> None:
    """``deviation``: in multiples of the mean."""
    day = ServegenDay.read(write(tmp_path / "clients.csv", *steady(1.0, shape=shape, dist=dist)), 0)
    gaps = [after - before for before, after in pairwise(day.arrivals_s(1.0, DAY_S, 1))]
    assert statistics.fmean(gaps) == pytest.approx(1.0, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(deviation, rel=0.05)


def test_gaps_that_are_longer_than_a_window_go_on_in_the_next(tmp_path: Path) -> None:
    """Of a client that sends every 2,000 s, give or take a tenth; when the day begins it is anywhere between two."""
    mean_s = 2000.0
    day = ServegenDay.read(write(tmp_path / "clients.csv", *steady(1 / mean_s, shape=100.0)), 0)
    firsts_s = []
    for seed in range(60):
        arrivals_s = day.arrivals_s(1 / mean_s, DAY_S, seed)
        gaps_s = [after_s - before_s for before_s, after_s in pairwise(arrivals_s)]
        assert all(0.5 * mean_s < gap_s < 1.5 * mean_s for gap_s in gaps_s)
        assert len(arrivals_s) == pytest.approx(DAY_S / mean_s, abs=4)
        firsts_s.append(arrivals_s[0])
    assert statistics.fmean(firsts_s) == pytest.approx(mean_s / 2, rel=0.2) and min(firsts_s) < 0.2 * mean_s


def test_the_first_gap_of_a_day_is_distributed_as_the_others(tmp_path: Path) -> None:
    """Of a client that sends in bursts the first request of a day may come later than a mean gap."""
    day = ServegenDay.read(write(tmp_path / "clients.csv", *steady(1 / 2000, shape=0.25)), 0)
    firsts_s = [day.arrivals_s(1 / 2000, DAY_S, seed)[0] for seed in range(100)]
    assert statistics.median(firsts_s) < 1000 and max(firsts_s) > 2000


def test_windows_keep_their_proportions_and_days_are_apart(tmp_path: Path) -> None:
    busy, quiet = steady(9.0)[:72], steady(1.0)[72:]
    path = write(tmp_path / "clients.csv", *busy, *quiet, f"0,{int(DAY_S)},1,1,Gamma,1,1")
    arrivals_s = ServegenDay.read(path, 0).arrivals_s(1.0, DAY_S, 1)
    early = sum(arrival_s < DAY_S / 2 for arrival_s in arrivals_s)
    assert early / len(arrivals_s) == pytest.approx(0.9, abs=0.01)
    assert ServegenDay.read(path, 1).windows == [ClientWindow(0, 0.0, 1.0, "Gamma", 1.0, 1.0)]


def test_what_is_no_day_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "clients.csv", *steady(1.0))
    with pytest.raises(WorkloadError, match="no client has a request on day 3"):
        ServegenDay.read(path, 3)
    silent = write(tmp_path / "silent.csv", *steady(0.0))
    with pytest.raises(WorkloadError, match="no client has a request on day 0"):
        ServegenDay.read(silent, 0)
    with pytest.raises(TraceError, match="line 2"):
        ServegenDay.read(write(tmp_path / "bad.csv", "0,0,1,1,Normal,1,1"), 0)


def test_the_published_clients_have_a_tide() -> None:
    day = ServegenDay.read(shared_data("traces/servegen_m-large_clients.csv.gz"), 1)
    assert all(0 <= window.start_s < DAY_S for window in day.windows)
    hours = [0] * 24
    for arrival_s in day.arrivals_s(2.0, DAY_S, 1):
        hours[int(arrival_s / 3600)] += 1
    assert max(hours) > 2 * min(hours)
