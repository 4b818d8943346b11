"""What executors of one kind serve to online users, as gateways and heartbeats tell it."""

from services.profiler.slo.workload import ALL_MIXED, SPAN_S, Pools, Workload, WorkloadRecorder, recorded
from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import Heartbeat
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.scheduling.placement.role import Role
from shared.watch.windows import Rolling

GONE_S = (
    30.0  # an executor that has not beaten for so long is none of a pool; one that is started anew is there by then
)


class OnlineWatch:
    """Latencies of all executors together; a workload of each, since each has a schedule of its own, and of all
    together where requests move between them."""

    def __init__(self, start_unix_s: float) -> None:
        self._start_unix_s = start_unix_s
        self._recorders: dict[str, WorkloadRecorder] = {}  # by executor
        self._served_s: dict[str, float] = {}  # when each was last told of
        self.last_minute = Rolling(60.0, OnlineLatencies)  # for people
        self._fresh = OnlineLatencies()
        self._steps_offline: dict[str, tuple[str, int]] = {}  # executor -> its epoch and its counter
        self._offline_ran = False
        self._pools: dict[str, tuple[float, Role]] = {}  # executor -> when it has beaten last, and what it is
        self._handover_ms = Rolling(SPAN_S, LatencyHistogram)

    def on_served(self, now_s: float, served: OnlineServed) -> None:
        """A gateway's report; ``now_s`` is monotonic. Nothing stays of an executor of which none came for so long that
        no workload has its requests any more."""
        self._served_s[served.executor_id] = now_s
        for executor_id in [each for each, served_s in self._served_s.items() if served_s < now_s - SPAN_S]:
            del self._recorders[executor_id], self._served_s[executor_id]
        recorder = self._recorders.setdefault(served.executor_id, WorkloadRecorder(self._start_unix_s))
        recorder.add(served)
        self.last_minute.add(now_s, served.latencies)
        self._fresh.merge(served.latencies)

    def on_heartbeat(self, now_s: float, beat: Heartbeat) -> None:
        """Tells whether offline work has run since the one before, and how long requests took to move. ``now_s`` is
        monotonic."""
        self._handover_ms.add(now_s, beat.handover_ms)
        self._pools[beat.info.executor_id] = now_s, beat.info.pool
        self._pools = {key: each for key, each in self._pools.items() if each[0] > now_s - GONE_S}
        info, steps_offline = beat.info, beat.counters.steps_offline
        epoch, before = self._steps_offline.get(info.executor_id, (info.epoch, steps_offline))
        self._offline_ran |= epoch != info.epoch or steps_offline > before
        self._steps_offline[info.executor_id] = info.epoch, steps_offline

    def take(self) -> tuple[OnlineLatencies, bool]:
        """Latencies since the last call, and whether offline work ran since then."""
        fresh, self._fresh = self._fresh, OnlineLatencies()
        ran, self._offline_ran = self._offline_ran, False
        return fresh, ran

    @property
    def pools(self) -> Pools:
        """That there are by now. Requests move as fast as half of them did: who waits for others on the link does so in
        a search, too."""
        roles = [role for _, role in self._pools.values()]
        num_strict = roles.count(Role.STRICT)
        if not 0 < num_strict < len(roles):
            return ALL_MIXED
        last_s = max(beaten_s for beaten_s, _ in self._pools.values())
        return Pools(len(roles), num_strict, self._handover_ms.total(last_s).quantile_ms(0.5) or 0.0)

    def workload(self, unix_s: float) -> Workload | None:
        """Of the executor with the most requests, or of all where there are pools; None where none has two."""
        if self.pools.num_strict:
            return recorded(list(self._recorders.values()), unix_s) if self._recorders else None
        workloads = (self._recorders[executor_id].workload(unix_s) for executor_id in sorted(self._recorders))
        return max((each for each in workloads if each), key=lambda each: len(each.requests), default=None)
