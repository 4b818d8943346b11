"""A capacity plan as it is printed, drawn and written. Field names are its JSON keys."""

from __future__ import annotations

import msgspec

from shared.protocol.profiling.slo_profile import Knob, SloVerdict


class PeakTrial(msgspec.Struct, frozen=True):
    """Online requests alone, in the busiest part of the trace, on so many executors. A run in which an SLO was lost
    beyond repair was stopped there: it has no figures."""

    executors: int
    tensor_parallel: int  # GPUs of each stage of an executor, which has one unless a pipeline is asked for
    gpus: int  # of all executors
    met: bool
    verdicts: list[SloVerdict]  # none of a stopped run
    lost: str = ""  # the SLO that could not be kept any more
    lost_after_s: float | None = None  # of virtual time


class Interval(msgspec.Struct, frozen=True):
    """A part of the window: prompt and output tokens/s of the requests that ended in it."""

    start_s: float
    duration_s: float
    online_tokens_per_s: float
    offline_tokens_per_s: float


class BesideOnline(msgspec.Struct, frozen=True):
    """The whole window with offline work beside, the SLOs kept over it and over its busiest part. ``value``: of the
    ``knob`` that the strategy has and nobody set, the largest found that keeps them; None where the strategy ran as
    it is."""

    knob: Knob | None
    value: float | None
    window: list[SloVerdict]
    busiest: list[SloVerdict]
    idle_share: float  # of the executors' time
    offline_requests_per_s: float
    offline_tokens_per_s: float  # prompt and output
    offline_output_tokens_per_s: float
    intervals: list[Interval]


class Backlog(msgspec.Struct, frozen=True):
    """How long so many offline requests take: beside online work at the window's mean rate, and alone."""

    requests: int
    beside_h: float | None  # None where nothing got done
    alone_requests_per_s: float  # of one executor that does nothing else
    alone_tokens_per_s: float
    alone_gpu_hours: float | None
    gpus_spared: float | None  # that would take as long as it takes beside online work


class DevicePlan(msgspec.Struct, frozen=True):
    """What to buy of one device. What has not been found, or cannot be, is None; ``problem`` says why."""

    device: str
    trials: list[PeakTrial]  # in the order in which they ran
    least: PeakTrial | None = None
    beside: BesideOnline | None = None
    backlog: Backlog | None = None
    problem: str = ""
    notes: list[str] = []


class CapacityPlan(msgspec.Struct, frozen=True):
    """The whole answer, and what was asked."""

    model: str
    preset: str
    changes: dict[str, str | int | float]  # what of the preset is not as it has it
    slos: list[str]
    trace: str
    prompts: str | None
    requests: int  # of the window
    start_s: float  # the window's, in the trace
    window_s: float
    peak_start_s: float  # since the window's start
    peak_s: float
    peak_requests: int
    seed: int
    devices: list[DevicePlan]
    partial: bool = False  # interrupted
