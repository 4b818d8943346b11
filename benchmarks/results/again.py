"""Which commands make which tables, and how they are run anew."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.kept import Kept, Place
from benchmarks.harness.origin import ROOT
from benchmarks.results.code import file_of, module_of
from loadgen.datasets import DATASETS

KEEPING = ("benchmarks.figures", "benchmarks.vllm")  # they keep what they make unasked
TAIL_LINES = 5


@dataclass(frozen=True, slots=True)
class Job:
    """One command, and the tables that it makes."""

    command: str
    places: Sequence[Place]

    @property
    def is_by_hand(self) -> bool:
        """No benchmark makes these."""
        module = module_of(self.command)
        return module is None or file_of(module, ROOT) is None

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
        if words[:3] == ["python", "-m", "benchmarks.figures"]:
            key = (*words[:4], "", *(word for word in words[4:] if word != place.name))
        else:
            key = (each.origin.command or "", str(place))
        together.setdefault(key, []).append(place)
    return [_job(key, places) for key, places in together.items()]


def _job(key: tuple[str, ...], places: Sequence[Place]) -> Job:
    if len(key) == 2:
        return Job(key[0], places)
    words = [each for word in key for each in ([place.name for place in places] if word == "" else [word])]
    return Job(shlex.join(words), places)


def run(job: Job, data: Path) -> str | None:
    """Why it failed, in the last lines that it said; None where it did not. Interrupted, it interrupts the command, and
    raises KeyboardInterrupt when that has ended."""
    with subprocess.Popen(
        job.words(data), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    return "\n".join(errors.splitlines()[-TAIL_LINES:]) if process.returncode else None
