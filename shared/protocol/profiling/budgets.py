"""Latency budgets on the bus, and how a stack keeps its SLOs with them."""

from __future__ import annotations

import enum

import msgspec

from shared.bounds import Amount, ProfileKey
from shared.protocol.profiling.slo_profile import SloVerdict


class BudgetSource(enum.StrEnum):
    """Where a latency budget comes from."""

    FIXED = "fixed"  # a setting
    TOLERANCE = "tolerance"  # a setting, where neither a budget nor SLOs are given
    SLO_START = "slo-start"  # named by the SLOs themselves; nothing has been searched yet
    SLO = "slo"  # what a search found
    FEEDBACK = "feedback"  # that, corrected by what users get
    PROFILING = "profiling"  # of a live search, while it runs


class BudgetRecord(msgspec.Struct, frozen=True):
    """The latency budget of one step. ``idle_budget_ms``: while no online request is held, where it is more; 0 is as
    ``Strategy.idle_budget_ms``. ``tolerance``: in its place, the share of the time that online tokens take alone by
    which offline work may make them come later. ``before``: while a live search has it to itself, what the stack has
    again after it; of what a live search has found, what the stack had without."""

    profile_key: ProfileKey
    latency_budget_ms: Amount
    source: BudgetSource
    idle_budget_ms: Amount = 0.0
    tolerance: Amount | None = None
    before: BudgetRecord | None = None

    @property
    def without_live_searches(self) -> BudgetRecord:
        """What the stack has where no live search is there, nor what one has found."""
        return self if self.before is None else self.before.without_live_searches


class SloState(enum.StrEnum):
    """Of one kind of executor."""

    WAITING = "waiting for a latency model"
    RECORDING = "recording the workload"
    SEARCHING = "searching for a budget"  # the first time; later searches do not show
    PROFILED = "profiled"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


class SloStatus(msgspec.Struct, frozen=True):
    """One kind of executor. ``slos``: what it has to keep; ``measured``: the last minute against the bounds; what is
    not known is None."""

    profile_key: str
    state: SloState
    budget_ms: float
    source: BudgetSource
    measured: list[SloVerdict]
    profiled_ms: float | None = None
    profiled_at_s: float | None = None
    profiled_because: str = ""
    note: str = ""  # what is wrong, or is waited for
    slos: list[str] = []


class SloReport(msgspec.Struct, frozen=True):
    """The answer on SLO_STATUS. ``slos``: those of all models. Empty where the stack keeps none."""

    slos: list[str]
    executors: list[SloStatus]
