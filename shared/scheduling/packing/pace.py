"""What packing knows about time, and about the steps before."""

from __future__ import annotations

from dataclasses import dataclass

from shared.scheduling.request import Kind
from shared.scheduling.schedule import Schedule

BASE_BATCH_SIZE = 128  # B_base of BROS section 4.2
NEWEST_STEP_WEIGHT = 0.1  # in the moving average of step times
PROBE_STEPS = 256  # without an offline request, after which one runs whatever the budget


@dataclass(frozen=True, slots=True)
class Pace:
    """Each step makes the next one's. ``now_ms`` is on the clock of the requests' deadlines: when the step starts."""

    now_ms: float = 0.0
    mean_step_ms: float = 0.0  # T_avg of BROS Alg. 1; 0 before the first step
    batch_size: int = BASE_BATCH_SIZE  # B_curr: requests of the next step
    last_kind: Kind | None = None  # of the work that the step before was for; both is online
    num_online_only: int = 0  # steps since one that had an offline request

    @property
    def probes(self) -> bool:
        """It is time to let an offline request in, if any is there."""
        return self.num_online_only >= PROBE_STEPS

    def at(self, now_ms: float) -> Pace:
        """The same, at another time."""
        return Pace(now_ms, self.mean_step_ms, self.batch_size, self.last_kind, self.num_online_only)

    def after(self, schedule: Schedule, max_num_seqs: int) -> Pace:
        """Once the schedule starts: the batch size doubles, up to ``max_num_seqs``, unless an online request stayed
        out for lack of time; then it falls back (adaptive batch sizing, BROS section 4.2)."""
        batch_size = BASE_BATCH_SIZE if schedule.hit_time_limit else 2 * self.batch_size
        entries, last_kind, num_online_only = schedule.entries, self.last_kind, self.num_online_only
        if entries:  # online first
            last_kind, num_online_only = entries[0].kind, num_online_only + 1 if entries[-1].kind is Kind.ONLINE else 0
        return Pace(self.now_ms, self.mean_step_ms, min(batch_size, max_num_seqs), last_kind, num_online_only)

    def measured(self, latency_ms: float) -> Pace:
        """A step ended that took so long."""
        mean_ms = self.mean_step_ms or latency_ms
        mean_ms += NEWEST_STEP_WEIGHT * (latency_ms - mean_ms)
        return Pace(self.now_ms, mean_ms, self.batch_size, self.last_kind, self.num_online_only)
