"""What all figures of one invocation share: the files, the window, and the runs made so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hygen.bench import Bench, Load
from benchmarks.hygen.mmlu import few_shot_prompts
from benchmarks.hygen.settings import TOLERANCES, Setting
from loadgen.progress import ReplayProgress
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace

DURATION_S = 900.0
PRECISION = 0.04
GIVEN = "files are checked before the first figure"
BACKLOG_PER_S = 4  # more than any of the machines finishes


@dataclass(frozen=True, slots=True)
class Inputs:
    """``online``: a trace; ``offline``: prompts or lengths; ``long_online``: a trace of long prompts (figure 12);
    ``shots`` and ``questions``: MMLU (figure 6). A file may be None where no figure needs it."""

    online: Path | None = None
    offline: Path | None = None
    long_online: Path | None = None
    shots: Path | None = None
    questions: Path | None = None
    start_s: float = 0.0
    duration_s: float = DURATION_S
    tolerances: tuple[float, ...] = TOLERANCES
    precision: float = PRECISION  # from one budget or rate that is tried to the next


class Lab:
    """Makes benches and keeps them, so that figures which need the same run share it."""

    def __init__(self, inputs: Inputs, progress: ReplayProgress) -> None:
        self.inputs = inputs
        self._progress = progress
        self._benches: dict[Setting, Bench] = {}
        self._backlog: list[OfflinePrompt] | None = None

    def bench(self, setting: Setting) -> Bench:
        """The trace sampled to the setting's rate, beside the offline lengths. Raises LoadgenError."""
        if setting not in self._benches:
            size = max(1, round(self.inputs.duration_s * BACKLOG_PER_S))
            load = self.load(setting, self.backlog(size))
            self._benches[setting] = self.bench_of(setting, load)
        return self._benches[setting]

    def bench_of(self, setting: Setting, load: Load) -> Bench:
        """Of a load of its own, which no other figure shares."""
        return Bench(setting, load, self.inputs.precision, self._progress)

    def load(self, setting: Setting, prompts: list[OfflinePrompt], duration_s: float | None = None) -> Load:
        """The window of the setting's trace, at its rate, beside ``prompts``. Raises LoadgenError."""
        inputs = self.inputs
        trace = inputs.long_online if setting.has_long else inputs.online
        assert trace is not None, GIVEN
        duration_s = duration_s or inputs.duration_s
        scaling = Scaling(start_s=inputs.start_s, duration_s=duration_s, qps=setting.qps)
        return Load(scaling.apply(read_trace(trace)), prompts, duration_s)

    def questions(self, seed: int) -> list[OfflinePrompt]:
        """MMLU's few-shot prompts. Raises LoadgenError."""
        assert self.inputs.shots is not None and self.inputs.questions is not None, GIVEN
        return few_shot_prompts(self.inputs.shots, self.inputs.questions, seed)

    def backlog(self, size: int) -> list[OfflinePrompt]:
        """The offline file's prompts, from the start again where they are fewer than ``size``."""
        assert self.inputs.offline is not None, GIVEN
        if self._backlog is None:
            self._backlog = load_backlog(self.inputs.offline)
        return [self._backlog[index % len(self._backlog)] for index in range(size)]

    @property
    def window(self) -> str:
        """For captions."""
        inputs = self.inputs
        return f"{inputs.duration_s:g} s of the trace from {inputs.start_s:g} s on"


def rates(benches: Sequence[Bench]) -> str:
    """For captions."""
    return ", ".join(f"{bench.setting.name} at {bench.setting.qps:g} online requests/s" for bench in benches)
