"""A stage of a run: a process of its own, so that a lost device, a missing package or a crash ends it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SKIPPED = 5  # exit status of a stage that lacks something here, which its last line names
OUTCOMES = {0: "done", SKIPPED: "skipped"}
GRACE_S = 10.0  # that one has to end when it is asked to

NAMES = {
    "machine": "what this machine is, and what is installed",
    "kernel-outputs": "attention kernels beside float64, ours and others'",
    "kernel-tests": "the kernels' tests, with pytest",
    "kernel-speed": "attention kernels beside FlashInfer's, vLLM's and torch's; copies of slots",
    "engine-parity": "greedy tokens of the torch engine beside transformers",
    "engine-tests": "the torch engine's tests that use the device, with pytest",
    "engine-speed": "steps of the torch engine with and without CUDA graphs, beside transformers",
    "stack": "a stack of the torch engine: online requests alone, offline ones alone, both together",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """``command``: writes Markdown to stdout, and anything to stderr, its last line being what came of it."""

    name: str
    about: str
    command: Sequence[str]

    def run(self, options: Sequence[str], environment: dict[str, str], log: Path, limit_s: float) -> Finished:
        """Its stderr is appended to ``log``. On an interrupt, or past its limit, it is ended, with all that it has
        started."""
        started_s = time.monotonic()
        with log.open("ab") as file:
            file.write(f"\n== {self.name}\n".encode())
            file.flush()
            position = file.tell()
            process = subprocess.Popen(
                [*self.command, *options],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
            try:
                markdown, _ = process.communicate(timeout=limit_s)
                outcome, said = OUTCOMES.get(process.returncode, "failed"), ""
            except subprocess.TimeoutExpired:
                markdown, outcome, said = _end(process), "failed", f"not done within {limit_s:g} s"
            except BaseException:
                _end(process)
                raise
        said = said or _last_line(log, position) or f"exit status {process.returncode}"
        return Finished(outcome, said, time.monotonic() - started_s, markdown.decode().strip())


@dataclass(frozen=True, slots=True)
class Finished:
    """``outcome``: done, skipped or failed; ``said``: what was found, or why; ``markdown``: as far as it came."""

    outcome: str
    said: str
    seconds: float
    markdown: str


STAGES = {
    name: Stage(name, about, (sys.executable, "-m", "benchmarks.gpu.worker", name)) for name, about in NAMES.items()
}


def stage_environment(device: str) -> dict[str, str]:
    """Triton's interpreter on a CPU and nowhere else, and no network."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TRITON_INTERPRET": "1" if device == "cpu" else "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def _end(process: subprocess.Popen[Any]) -> bytes:
    """What it has written to stdout."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return bytes(process.communicate(timeout=GRACE_S)[0])
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return bytes(process.communicate()[0])


def _last_line(log: Path, position: int) -> str:
    with log.open("rb") as file:
        file.seek(position)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
