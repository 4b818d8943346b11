"""What every run shares, and the plans of the three kinds of run."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace

DEFAULT_SLOS = ("tbt_mean<=1.1x", "ttft_p99<=1.1x")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs of one setting may stand in one table. Each field is an option of the command."""

    online: Annotated[str, typer.Option(metavar="TRACE", help="Arrivals, as for slackwater replay.")]
    offline: Annotated[str, typer.Option(metavar="PROMPTS", help="Backlog, as for slackwater replay.")]
    model: ModelOption = DEFAULT_MODEL
    window: Annotated[float, typer.Option(min=1.0, help="Seconds of each run.")] = 50.0
    start: Annotated[float, typer.Option(min=0.0, help="Skip so many seconds of the trace.")] = 600.0
    length_scale: Annotated[float, typer.Option(help="Factor on all lengths.")] = 0.125
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before each window.")] = 8.0
    seed: int = 0
    offline_limit: Annotated[int, typer.Option(min=1, help="So many of the prompts.")] = 500
    offline_max_tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens of each prompt.")] = None
    slo: Annotated[list[str] | None, typer.Option(help=f"Repeatable. Default: {' '.join(DEFAULT_SLOS)}.")] = None
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each engine.")] = 1
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 512
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests of a step.")] = 32
    max_model_len: Annotated[int, typer.Option(min=1, help="Tokens of a request.")] = 2048
    kv_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the KV cache has room for.")] = 16384

    @property
    def slos(self) -> list[str]:
        """Raises WorkloadError for what is none."""
        return [parse_slo(expr).expr for expr in self.slo or DEFAULT_SLOS]

    def describe(self) -> str:
        """For captions."""
        return (
            f"{self.model}, float32, {self.threads} thread{'s' if self.threads > 1 else ''}; {self.window:g} s of "
            f"{Path(self.online).name} from {self.start:g} s on beside {Path(self.offline).name}, lengths times "
            f"{self.length_scale:g}; {self.max_num_batched_tokens} tokens and {self.max_num_seqs} requests in a step, "
            f"a KV cache of {self.kv_tokens:,} tokens"
        )


@dataclass(frozen=True)
class Workload:
    """Plans of equal requests for every server. Reads the files when they are first needed."""

    setting: Setting
    model_path: Path

    def online_only(self, rate: float) -> ReplayPlan:
        return replace(self.together(rate), prompts=())

    def offline_only(self) -> ReplayPlan:
        return replace(self.together(None), requests=[])

    def together(self, rate: float | None) -> ReplayPlan:
        """``rate``: online requests/s; None is the trace's own. Raises TraceError, WorkloadError."""
        setting = self.setting
        scaling = Scaling(
            start_s=setting.start,
            duration_s=setting.window,
            qps=rate,
            length_scale=setting.length_scale,
            seed=setting.seed,
        )
        return ReplayPlan(
            requests=scaling.apply(self._trace),
            prompts=self._prompts,
            scaling=scaling,
            trace=setting.online,
            prompt_file=setting.offline,
            model_path=self.model_path,
            max_context=setting.max_model_len,
            warm_up_s=setting.warm_up,
            mark_offline=True,
        )

    @cached_property
    def _trace(self) -> list[TraceRequest]:
        return list(read_trace(Path(self.setting.online)))

    @cached_property
    def _prompts(self) -> list[OfflinePrompt]:
        setting = self.setting
        return load_backlog(Path(setting.offline), setting.offline_limit, setting.offline_max_tokens)
