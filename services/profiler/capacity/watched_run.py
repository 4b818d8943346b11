"""A simulated run that ends as soon as its SLOs cannot be kept any more, and what it says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.report.report import OnlineReport
from loadgen.report.slo import Slo
from services.profiler.capacity.lost_slos import LostSlos
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.protocol.profiling.slo_profile import SloVerdict

LOOK_S = 1.0  # of virtual time, between two looks


@dataclass(slots=True)
class SloWatch:
    """To be called after each step of a run; ``tell`` hears of it as often. ``lost``: the SLO that was lost, which
    stopped the run."""

    losses: Sequence[LostSlos]
    tell: Callable[[VirtualPhase], None]
    lost: Slo | None = field(init=False, default=None)
    _next_look_s: float = field(init=False, default=LOOK_S)

    def __call__(self, phase: VirtualPhase) -> None:
        self.tell(phase)
        if phase.now_s < self._next_look_s:
            return
        self._next_look_s = phase.now_s + LOOK_S
        found = [losses.find(phase.records, phase.now_s) for losses in self.losses]
        self.lost = next((slo for slo in found if slo is not None), None)
        if self.lost is not None:
            phase.stop()


def verdicts_of(slos: Sequence[Slo], online: OnlineReport) -> list[SloVerdict]:
    """Of SLOs that are not relative."""
    values = [(slo, slo.value_ms(online)) for slo in slos]
    return [SloVerdict(slo.expr, slo.limit, value_ms, slo.is_met(value_ms, slo.limit)) for slo, value_ms in values]


def are_kept(verdicts: Sequence[SloVerdict], online: OnlineReport) -> bool:
    """All of them, and no request failed."""
    return all(verdict.met for verdict in verdicts) and not online.errors
