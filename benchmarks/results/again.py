"""Which commands make which tables, and how they are run anew."""

import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.kept import Kept, Place
from benchmarks.harness.origin import ROOT
from benchmarks.results.code import FIGURES, file_of, module_of
from loadgen.datasets import DATASETS

KEEPING = (FIGURES, "benchmarks.vllm")  # they keep what they make unasked
TAIL_LINES = 5
INTERRUPTED_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """One command, and the tables that it makes."""

    command: str
    places: Sequence[Place]

    @property
    def is_benchmark(self) -> bool:
        """Of this tree; else there is nothing to run."""
        module = module_of(self.command)
        return module is not None and file_of(module, ROOT) is not None

    def words(self, data: Path) -> list[str]:
        """For this Python; public traces and sets of prompts are those in the folder ``data``."""
        _, _, module, *options = shlex.split(self.command)
        found = [str(data / word) if (data / word).is_file() else word for word in options]
        keep = [] if module in KEEPING else ["--keep", str(self.places[0])]
        return [sys.executable, "-m", module, *keep, *found]

    def missing(self, data: Path) -> list[str]:
        """Of those files."""
        known = {each.file for each in DATASETS}
        return [word for word in shlex.split(self.command) if word in known and not (data / word).is_file()]


def jobs_of(kept: Mapping[Place, Kept]) -> list[Job]:
    """Figures of a paper with the same options are one, since they share runs."""
    together: dict[tuple[str, ...], list[Place]] = {}
    for place, each in kept.items():
        words = shlex.split(each.origin.command or "")
        shared = [word for word in words if word != place.name]
        key = tuple(shared) if module_of(each.origin.command or "") == FIGURES else (str(place),)
        together.setdefault(key, []).append(place)
    return [Job(_command(kept[places[0]].origin.command or "", places), places) for places in together.values()]


def _command(first: str, places: Sequence[Place]) -> str:
    """That of the first place, for all of them."""
    if len(places) == 1:
        return first
    words = shlex.split(first)
    at = words.index(places[0].name)
    return shlex.join([*words[:at], *(place.name for place in places), *words[at + 1 :]])


def run(job: Job, data: Path) -> str | None:
    """Why it failed, in the last lines that it said; None where it did not. Interrupted, it interrupts the command, and
    raises KeyboardInterrupt when that has ended."""
    with (
        _interrupts_held_back() as let_go,
        subprocess.Popen(
            job.words(data), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        try:
            let_go()
            _, errors = process.communicate()
        except KeyboardInterrupt:
            _interrupt(process)
            raise
    return "\n".join(errors.splitlines()[-TAIL_LINES:]) if process.returncode else None


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[Callable[[], None]]:
    """Until what is yielded is called: a process is not left alone that is being begun when Ctrl-C comes."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))

    def let_go() -> None:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt

    try:
        yield let_go
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Return when it has ended. One that has just begun may lose the first signal: it gets others."""
    while True:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=INTERRUPTED_AGAIN_S)
            return
