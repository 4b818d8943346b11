"""What Numba compiles is kept for the next process, as long as all its sources are the same."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="Numba is not installed")

from kernels.cpu import threads

KERNEL = """
from numba import prange
from kernels.cpu.compiled import compiled
from kernels.cpu.part import part

def kernel(size):
    @compiled("void(float32[::1])")
    def fill(out):
        for i in prange(len(out)):
            out[i] = size * part(i)

    return fill
"""
PART = """
from numba import njit

@njit(inline="always")
def part(i):
    return i + 1
"""
PROGRAM = """
import numpy as np
from kernels.cpu.kernel import kernel
out = np.zeros(3, np.float32)
for size in (1, 10):
    kernel(size)(out)
    print(out.astype(int).tolist())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``kernels/cpu``, with a kernel of two sizes whose part lies in another file."""
    made = tmp_path / "kernels/cpu"
    made.mkdir(parents=True)
    shutil.copy(Path(threads.__file__).with_name("compiled.py"), made)
    (made / "kernel.py").write_text(KERNEL)
    (made / "part.py").write_text(PART)
    return made


def run(folder: Path, bytes_of_a_file: int = resource.RLIM_INFINITY) -> tuple[list[str], dict[str, int]]:
    """What it prints, and when each file of the cache was written."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_of_a_file}, {bytes_of_a_file}))"
    program = f"{limit}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), {file.name: file.stat().st_mtime_ns for file in folder.rglob("*.nb?")}


def test_kernels_are_compiled_once_and_again_where_a_part_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    printed, written = run(folder)
    assert printed == ["[1, 2, 3]", "[10, 20, 30]"]
    assert sorted(Path(name).suffix for name in written) == [".nbc", ".nbc", ".nbi", ".nbi"], "each size has its own"
    assert run(folder) == (printed, written)
    (folder / "part.py").write_text(PART.replace("i + 1", "i + 7"))
    assert run(folder)[0] == ["[7, 8, 9]", "[70, 80, 90]"]


def test_a_kernel_runs_where_the_disk_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert run(folder, bytes_of_a_file=0) == (["[1, 2, 3]", "[10, 20, 30]"], {})
