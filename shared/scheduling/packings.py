"""The packings by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.scheduling.arrival_packing import FcfsPacking, RoundRobinPacking
from shared.scheduling.batch import Schedule, ScheduledRequest
from shared.scheduling.deadline_packing import DeadlinePacking
from shared.scheduling.packing import Packing, StepState
from shared.scheduling.request import Request
from shared.scheduling.schedule import reconcile, two_phase_schedule


class TwoPhasePacking:
    """HyGen's: online work as if it were alone, then offline work within the latency budget."""

    uses_time = False

    def schedule(self, state: StepState, offline_queue: Iterable[Request]) -> Schedule:
        return two_phase_schedule(
            state.table,
            offline_queue,
            state.num_free_blocks,
            state.num_offline_blocks,
            state.limits,
            state.policy,
            state.model,
        )

    def reconcile(self, state: StepState, plan: Sequence[ScheduledRequest], preempted: Iterable[str]) -> Schedule:
        return reconcile(
            plan,
            preempted,
            state.table,
            state.num_free_blocks,
            state.num_offline_blocks,
            state.limits,
            state.policy,
            state.model,
        )


PACKINGS: dict[str, Packing] = {
    "two-phase": TwoPhasePacking(),
    "deadline": DeadlinePacking(),
    "fcfs": FcfsPacking(),
    "round-robin": RoundRobinPacking(),
}


def packing_named(name: str) -> Packing:
    """Raises ValueError that lists the known names."""
    try:
        return PACKINGS[name]
    except KeyError:
        raise ValueError(f"unknown packing {name!r}; known: {', '.join(PACKINGS)}") from None
