"""How many cores may be used, as the files of a system tell."""

import os
import sys
from pathlib import Path

import pytest

from shared.process.cores import usable_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is said of Linux")


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def written(root: Path, group: str = "/", **quotas: str) -> Path:
    """``quotas``: cpu.max of the group (here) and of the one that it is in (above)."""
    places = {"here": group.strip("/"), "above": group.strip("/").rpartition("/")[0]}
    files = {"proc/self/cgroup": f"1:cpu:/v1\n0::{group}\n"}
    files |= {f"sys/fs/cgroup/{places[name]}/cpu.max": f"{quota}\n" for name, quota in quotas.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 16),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("9900000 100000", 16),
        ("", 16),
        ("nonsense", 16),
    ],
)
def test_a_container_has_as_many_as_it_is_given_the_time_of(tmp_path: Path, quota: str, cores: int) -> None:
    assert usable_cores(written(tmp_path, here=quota)) == cores


def test_the_tightest_of_the_groups_above_counts(tmp_path: Path) -> None:
    assert usable_cores(written(tmp_path, "/pod/box", here="400000 100000", above="300000 100000")) == 3
    assert usable_cores(written(tmp_path, "/pod/box", here="200000 100000", above="max 100000")) == 2


def test_a_system_that_tells_nothing_has_all(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16
