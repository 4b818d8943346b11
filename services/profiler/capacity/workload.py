"""What a plan is made for: the trace's window, its busiest part, and the offline work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadgen.replay import ReplayPlan
from loadgen.workload.peak import busiest_start_s
from loadgen.workload.scaling import window
from services.profiler.simulation.workload import SimulatedWorkload
from shared.simulation.setup import ExecutorSetup


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """``whole``: the window's requests and the backlog. ``peak_start_s``: since the window's start."""

    whole: ReplayPlan
    peak_start_s: float
    peak_s: float
    clients: int = 1

    @classmethod
    def of(cls, whole: ReplayPlan, peak_s: float, clients: int = 1) -> PlannedWorkload:
        """The busiest ``peak_s`` seconds, or the whole where it is shorter. Raises ValueError without requests."""
        peak_s = min(peak_s, whole.scaling.duration_s)
        start_s = min(busiest_start_s(whole.requests, peak_s), whole.scaling.duration_s - peak_s)
        return cls(whole, start_s, peak_s, clients)

    @property
    def window_s(self) -> float:
        return self.whole.scaling.duration_s

    @property
    def peak(self) -> ReplayPlan:
        """The busiest part by itself: its requests arrive at an empty system."""
        scaling = replace(self.whole.scaling, duration_s=self.peak_s)
        requests = window(self.whole.requests, self.peak_start_s, self.peak_s)
        return replace(self.whole, requests=requests, scaling=scaling)

    def is_of_peak(self, arrival_s: float) -> bool:
        """``arrival_s``: since the window's start."""
        return self.peak_start_s <= arrival_s < self.peak_start_s + self.peak_s

    def online_at_peak(self, setup: ExecutorSetup, executors: int) -> SimulatedWorkload:
        """Without offline work."""
        return self._simulated(replace(self.peak, prompts=()), setup, executors)

    def at_peak(self, setup: ExecutorSetup, executors: int) -> SimulatedWorkload:
        """Beside offline work that never runs out."""
        return self._simulated(self.peak, setup, executors)

    def in_window(self, setup: ExecutorSetup, executors: int) -> SimulatedWorkload:
        """The whole window beside offline work that never runs out."""
        return self._simulated(self.whole, setup, executors)

    def _simulated(self, plan: ReplayPlan, setup: ExecutorSetup, executors: int) -> SimulatedWorkload:
        return SimulatedWorkload(plan, setup, self.clients, num_executors=executors, is_endless=bool(plan.prompts))
