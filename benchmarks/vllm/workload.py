"""What every run shares, and the plans of the three kinds of run."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace

DEFAULT_SLOS = ("tbt_mean<=1.1x", "ttft_p99<=1.1x")


class Setting(msgspec.Struct, frozen=True):
    """Runs of one setting may stand in one table. Times are in seconds."""

    online: str  # the trace's file
    offline: str  # the backlog's file
    model: str
    window_s: float = 50.0
    start_s: float = 600.0
    length_scale: float = 0.125
    warm_up_s: float = 8.0
    seed: int = 0
    offline_limit: int = 500
    offline_max_tokens: int | None = None
    slos: tuple[str, ...] = DEFAULT_SLOS
    threads: int = 1
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    max_model_len: int = 2048
    kv_tokens: int = 16384

    def describe(self) -> str:
        """For captions."""
        return (
            f"{self.model}, float32, {self.threads} thread{'s' if self.threads > 1 else ''}; {self.window_s:g} s of "
            f"{Path(self.online).name} from {self.start_s:g} s on beside {Path(self.offline).name}, lengths times "
            f"{self.length_scale:g}; {self.max_num_batched_tokens} tokens and {self.max_num_seqs} requests in a step, "
            f"a KV cache of {self.kv_tokens:,} tokens"
        )


class Workload:
    """Plans of equal requests for every server. Reads the files when they are first needed."""

    def __init__(self, setting: Setting, model_path: Path) -> None:
        self.setting = setting
        self.model_path = model_path

    def online_only(self, rate: float) -> ReplayPlan:
        return replace(self.together(rate), prompts=())

    def offline_only(self) -> ReplayPlan:
        return self._plan([], self._prompts, None)

    def together(self, rate: float) -> ReplayPlan:
        """``rate``: online requests/s. Raises TraceError, WorkloadError."""
        scaling = self._scaling(rate)
        return self._plan(scaling.apply(self._trace), self._prompts, rate)

    def _plan(self, requests: list[TraceRequest], prompts: list[OfflinePrompt], rate: float | None) -> ReplayPlan:
        setting = self.setting
        return ReplayPlan(
            requests=requests,
            prompts=prompts,
            scaling=self._scaling(rate),
            trace=setting.online,
            prompt_file=setting.offline,
            model_path=self.model_path,
            max_context=setting.max_model_len,
            warm_up_s=setting.warm_up_s,
            mark_offline=True,
        )

    def _scaling(self, rate: float | None) -> Scaling:
        setting = self.setting
        return Scaling(
            start_s=setting.start_s,
            duration_s=setting.window_s,
            qps=rate,
            length_scale=setting.length_scale,
            seed=setting.seed,
        )

    @cached_property
    def _trace(self) -> list[TraceRequest]:
        return list(read_trace(Path(self.setting.online)))

    @cached_property
    def _prompts(self) -> list[OfflinePrompt]:
        setting = self.setting
        return load_backlog(Path(setting.offline), setting.offline_limit, setting.offline_max_tokens)
