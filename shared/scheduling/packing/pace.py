"""What packing knows about time, and about the steps before."""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from shared.bounds import Amount, Count, Duration, Finite, Positive
from shared.scheduling.credit import NO_SHARE, Credit, OnlineShare
from shared.scheduling.packing.gating import Evictions
from shared.scheduling.request import OFFLINE, ONLINE, Kind
from shared.scheduling.schedule import Schedule

BASE_BATCH_SIZE = 128  # B_base of BROS section 4.2
NEWEST_STEP_WEIGHT = 0.1  # in the moving average of step times
PROBE_STEPS = 256  # without an offline request, after which one runs whatever the budget
TURN_STEPS, TURNS = 2048, 4  # of so many turns the last is for who waits for more blocks than others behind it

_kind = attrgetter("kind")


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """Each step makes the next one's. ``now_ms`` is on the clock of the requests' deadlines: when the step starts."""

    now_ms: Finite = 0.0
    mean_step_ms: Amount = 0.0  # T_avg of BROS Alg. 1; 0 before the first step
    batch_size: Positive = BASE_BATCH_SIZE  # B_curr: requests of the next step
    last_kind: Kind | None = None  # of the work that the step before was for; both is online
    num_online_only: Count = 0  # steps since one that had an offline request
    credit: Credit = Credit()  # of offline work, where online requests are held to a tolerance
    most_idle_ms: Duration = math.inf  # of a step without online requests: those before it were interrupted
    num_interrupted: Count = 0  # steps in a row
    seed: Count = 0  # of what is drawn for a step: the steps so far
    evictions: Evictions = Evictions()

    @property
    def probes(self) -> bool:
        """It is time to let an offline request in, if any is there."""
        return self.num_online_only >= PROBE_STEPS

    @property
    def holds_line(self) -> bool:
        """Nobody passes an offline request that waits for blocks of online ones."""
        return self.seed // TURN_STEPS % TURNS == TURNS - 1

    def at(self, now_ms: float) -> Pace:
        """The same, at another time."""
        return replace(self, now_ms=now_ms)

    def of_new_model(self) -> Pace:
        """The same where steps are predicted by another latency model from here on."""
        return replace(self, credit=self.credit.of_new_model())

    def after(self, schedule: Schedule, max_num_seqs: int, num_lost: int = 0) -> Pace:
        """Once the schedule starts: the batch size doubles, up to ``max_num_seqs``, unless an online request stayed
        out for lack of time; then it falls back (adaptive batch sizing, BROS section 4.2). ``num_lost``: offline
        requests among those that it preempts."""
        batch_size = BASE_BATCH_SIZE if schedule.hit_time_limit else 2 * self.batch_size
        entries, last_kind, num_online_only = schedule.entries, self.last_kind, self.num_online_only
        if entries:  # online first
            last_kind, num_online_only = entries[0].kind, num_online_only + 1 if entries[-1].kind is ONLINE else 0
        num_offline = len(entries) - bisect_left(entries, OFFLINE, key=_kind)
        evictions = self.evictions.after(num_lost, num_offline)
        credit, batch_size = self.credit, min(batch_size, max_num_seqs)
        if schedule.share.num_requests:
            credit = credit.started(schedule.share, schedule.latency_ms)
        return replace(
            self,
            batch_size=batch_size,
            last_kind=last_kind,
            num_online_only=num_online_only,
            credit=credit,
            seed=self.seed + 1,
            evictions=evictions,
        )

    def measured(
        self, latency_ms: float, turn_ms: float = 0.0, share: OnlineShare = NO_SHARE, planned_ms: float = 0.0
    ) -> Pace:
        """A step ended that took so long, ``turn_ms`` since the end of the one before, instead of ``planned_ms``."""
        mean_ms = self.mean_step_ms or latency_ms
        mean_ms += NEWEST_STEP_WEIGHT * (latency_ms - mean_ms)
        if share.num_requests:
            return replace(self, mean_step_ms=mean_ms, credit=self.credit.measured(share, planned_ms, turn_ms))
        if self.last_kind is OFFLINE:
            return replace(self, mean_step_ms=mean_ms, most_idle_ms=2.0 * self.most_idle_ms, num_interrupted=0)
        return replace(self, mean_step_ms=mean_ms)

    def interrupted(self, planned_ms: float) -> Pace:
        """A step that was to take so long stopped for an online request. The next are shorter, so that less is lost
        where such requests come often. Where no model is known yet nothing is predicted, and they stay as they are: of
        no time at all none would ever grow again."""
        most_idle_ms = planned_ms / 2.0 if planned_ms > 0 else self.most_idle_ms
        return replace(self, most_idle_ms=most_idle_ms, num_interrupted=self.num_interrupted + 1)
