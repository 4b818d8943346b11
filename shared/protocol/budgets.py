"""Latency budgets on the bus."""

import enum

import msgspec


class BudgetSource(enum.StrEnum):
    """Where a latency budget comes from."""

    FIXED = "fixed"  # a setting
    TARGET_TBT = "target-tbt"  # a setting, where neither a budget nor SLOs are given
    SLO_START = "slo-start"  # SLOs are kept, and nothing has been searched yet
    SLO = "slo"  # what a search found
    FEEDBACK = "feedback"  # that, corrected by what users get
    PROFILING = "profiling"  # of a live search, while it runs


class BudgetRecord(msgspec.Struct, frozen=True):
    """The latency budget of one step, and where it comes from. ``idle_budget_ms``: of a step while no online request
    is held, where it is more."""

    profile_key: str
    latency_budget_ms: float
    source: BudgetSource
    idle_budget_ms: float = 0.0
