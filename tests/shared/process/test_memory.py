"""How much memory may be taken, as the files of a system tell."""

from pathlib import Path

from shared.process.memory import available_memory_bytes, total_memory_bytes

MIB = 1024**2


def written(root: Path, available_mib: int, group: str = "/", **limits: tuple[int | str, int, int]) -> Path:
    """``limits``: of groups by their last name ("": the root), the limit, what is used, and of that what idle files
    have, in MiB."""
    files = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {available_mib * 1024} kB\n"}
    files["proc/self/cgroup"] = f"0::{group}\n"
    places = {"here": group.strip("/"), "above": group.strip("/").rpartition("/")[0]}
    for name, (limit, used, idle) in limits.items():
        folder = f"sys/fs/cgroup/{places[name]}"
        files[f"{folder}/memory.max"] = f"{limit if limit == 'max' else int(limit) * MIB}\n"
        files[f"{folder}/memory.current"] = f"{used * MIB}\n"
        files[f"{folder}/memory.stat"] = f"anon 1\ninactive_file {idle * MIB}\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_machine_says_where_there_is_no_limit(tmp_path: Path) -> None:
    assert available_memory_bytes(written(tmp_path, 700)) == 700 * MIB
    assert available_memory_bytes(written(tmp_path, 700, here=("max", 5, 0))) == 700 * MIB


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    assert available_memory_bytes(written(tmp_path, 700, here=(512, 400, 100))) == 212 * MIB
    assert available_memory_bytes(written(tmp_path, 100, here=(512, 400, 100))) == 100 * MIB
    assert available_memory_bytes(written(tmp_path, 700, here=(512, 600, 0))) == 0


def test_the_tightest_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = written(tmp_path, 700, "/pod/container", here=(600, 10, 0), above=(300, 50, 0))
    assert available_memory_bytes(root) == 250 * MIB


def test_a_system_that_tells_nothing_has_all(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) == total_memory_bytes()
