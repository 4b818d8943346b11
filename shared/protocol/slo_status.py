"""How a stack keeps its SLOs, as the profiler answers it."""

import enum

import msgspec

from shared.protocol.budgets import BudgetSource
from shared.protocol.slo_profile import SloVerdict


class SloState(enum.StrEnum):
    """Of one kind of executor."""

    WAITING = "waiting for a latency model"
    RECORDING = "recording the workload"
    SEARCHING = "searching for a budget"  # the first time; later searches do not show
    PROFILED = "profiled"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


class SloStatus(msgspec.Struct, frozen=True):
    """One kind of executor. ``measured``: the last minute against the bounds; what is not known is None."""

    profile_key: str
    state: SloState
    budget_ms: float
    source: BudgetSource
    measured: list[SloVerdict]
    profiled_ms: float | None = None
    profiled_at_s: float | None = None
    profiled_because: str = ""
    note: str = ""  # what is wrong, or is waited for


class SloReport(msgspec.Struct, frozen=True):
    """The answer on SLO_STATUS. Empty where the stack keeps no SLOs."""

    slos: list[str]
    executors: list[SloStatus]
