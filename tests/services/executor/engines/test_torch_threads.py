"""OpenMP's threads, of which a process shall have no more than its engine's steps use."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import sys, threading, time
from pathlib import Path
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
import torch

def num_waiting():
    '''Threads that sleep in OpenMP's library: those of a team do between its products. None while any but this one
    runs or ends, of which it is not known yet.'''
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line]
    areas = [[int(address, 16) for address in fields[0].split("-")] for fields in maps]
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
    try:
        calls = [(task / "syscall").read_text().split()[-1] for task in tasks]
        places = [int(call, 16) for call in calls]
    except (OSError, ValueError):
        return None
    return sum(any(first <= place < last for first, last in areas) for place in places)

def settled(expected):
    for _ in range(600):
        found = num_waiting()
        if found == expected:
            break
        time.sleep(0.1)
    return found

engine = load_engine(ExecutorSettings(model_path=sys.argv[1], engine="torch", threads=2, kv_blocks=8))
after_load = settled(0)
torch.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
print(after_load, settled(1))
engine.close()
"""

LARGE = """
import services.executor.engines.torch.threads
from pathlib import Path
import torch

tensor = torch.empty(4 << 20)
address = tensor.data_ptr()
for line in Path("/proc/self/smaps").read_text().splitlines():
    first, _, last = line.split()[0].partition("-")
    if last:
        holds = int(first, 16) <= address < int(last, 16)
    elif holds and line.startswith("VmFlags:"):
        print("hg" in line.split())
"""

MANY_THREADS = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch

engine = load_engine(ExecutorSettings(model_path=sys.argv[1], engine="torch", threads=999, kv_blocks=8))
engine.execute(StepBatch(0, [Sequence("a", [5, 6, 7], 0, [0], SamplingParams(max_tokens=1), needs_sample=True)]))
print(len(list(Path("/proc/self/task").iterdir())))
engine.close()
"""

LOAD_FOR_EVER = """
import sys, threading
from services.executor import __main__ as executor
from services.executor.engines.torch.threads import apart

def load():
    print("loading", flush=True)
    threading.Event().wait()

executor.load_engine = lambda settings: apart(load)
executor.main()
"""


def test_a_loaded_engine_leaves_no_openmp_threads_behind(model_folder: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(model_folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"]


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here")
def test_large_tensors_are_to_be_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)  # what the tests' own import of it has set
    done = subprocess.run([sys.executable, "-c", LARGE], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_an_interrupt_ends_a_process_that_loads_at_once(model_folder: Path) -> None:
    command = [sys.executable, "-c", LOAD_FOR_EVER, "--model-path", str(model_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


def test_no_more_threads_compute_than_there_are_cores(shallow_model: Path) -> None:
    command = [sys.executable, "-c", MANY_THREADS, str(shallow_model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50 and "there are fewer cores than threads" in done.stderr
