"""Options that several commands share, as dataclasses: each field becomes an option of the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.options import (
    BaselineOption,
    DrainOption,
    FillerOption,
    JsonFileOption,
    LengthScaleOption,
    MaxContextOption,
    ModelPathOption,
    OfflineLimitOption,
    OfflineMaxTokensOption,
    OfflineOnlyShareOption,
    OfflineOption,
    OnlineOption,
    ProgressOption,
    QpsOption,
    RateScaleOption,
    SeedOption,
    SloOption,
    StartOption,
    TimeScaleOption,
)
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """The trace, the backlog, and how they are cut and scaled."""

    online: OnlineOption = None
    offline: OfflineOption = None
    start: StartOption = 0.0
    qps: QpsOption = None
    rate_scale: RateScaleOption = None
    time_scale: TimeScaleOption = 1.0
    length_scale: LengthScaleOption = 1.0
    max_context: MaxContextOption = None
    seed: SeedOption = 0
    model_path: ModelPathOption = None
    filler: FillerOption = None
    offline_limit: OfflineLimitOption = None
    offline_max_tokens: OfflineMaxTokensOption = None

    def plan(self, duration_s: float, model: str | None, **options: Any) -> ReplayPlan:
        """Read the files. ``options``: further fields of the plan. Raises TraceError, WorkloadError."""
        scaling = Scaling(
            self.start, duration_s, self.qps, self.rate_scale, self.time_scale, self.length_scale, self.seed
        )
        return ReplayPlan(
            requests=scaling.apply(read_trace(self.online)) if self.online else [],
            prompts=load_backlog(self.offline, self.offline_limit, self.offline_max_tokens) if self.offline else [],
            scaling=scaling,
            trace=_name(self.online),
            prompt_file=_name(self.offline),
            model=model,
            model_path=self.model_path,
            filler=self.filler,
            max_context=self.max_context,
            **options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a run measures, and how it shows it."""

    drain: DrainOption = False
    slo: SloOption = None
    baseline: BaselineOption = False
    offline_only_share: OfflineOnlyShareOption = 0.5
    json_file: JsonFileOption = None
    progress: ProgressOption = None

    def plan_options(self) -> dict[str, Any]:
        """Fields of a ReplayPlan. Raises SloError."""
        return {
            "slos": [parse_slo(expr) for expr in self.slo or []],
            "baseline": self.baseline,
            "offline_only_share": self.offline_only_share,
            "drain": self.drain,
        }


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)
