"""What a running stack tells about itself second by second, added up for a screen."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import Heartbeat
from shared.protocol.offline.batches import OPEN_STATUSES, Batch, BatchRecord
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.scheduling.placement.role import Role
from shared.watch.batch_counts import BatchCounts
from shared.watch.pools import acting_roles
from shared.watch.windows import RateWindow, Rolling

RATE_S = 10.0  # of rates and step times
ONLINE_S = 60.0  # of latencies
SLOWDOWN_S = 60.0
BATCH_RATE_S = 60.0  # of a batch's lines, which end seldom
GONE_S = 5.0  # an executor that has not beaten for so long is not shown
MAX_ENDED = 5  # batches that are shown; of each owner so many are kept

Sees = Callable[[BatchRecord], bool]


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """One executor now. Rates and step times are of the last seconds; None where nothing has come yet. ``budget_ms``:
    of a step with what it holds now; None where it is bounded otherwise, or by nothing. ``online_slowdown``: what
    online tokens took in the last minute, over what they would have taken without offline work; None where that is not
    measured. ``acts_as``: beside the others that live."""

    beat: Heartbeat
    step_ms: LatencyHistogram
    budget_ms: float | None
    steps_per_s: float | None
    busy_share: float | None
    online_tokens_per_s: float | None
    offline_tokens_per_s: float | None
    online_slowdown: float | None
    acts_as: Role


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch that has not ended. Lines per second are those of the last minute, and ``left_s`` what that makes of
    the rest; None where none is known."""

    record: BatchRecord
    done: int
    lines_per_s: float | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class StackView:
    """A moment of the stack. ``online``: what users got in the last minute. ``ended``: the batches that ended last,
    the newest first."""

    executors: list[ExecutorView]
    online: OnlineLatencies
    batches: list[BatchView]
    ended: list[BatchRecord]
    budgets: dict[str, BudgetRecord]  # by profile key

    @property
    def profile_keys(self) -> frozenset[str]:
        """Of the kinds of executors that live."""
        return frozenset(executor.beat.info.profile_key for executor in self.executors)


def _sees_all(record: BatchRecord) -> bool:
    return True


class StackWatch:
    """Told what comes over the bus, with monotonic times of the caller; ``view`` is the sum of it."""

    def __init__(self) -> None:
        self._executors: dict[str, _ExecutorWatch] = {}
        self._online = Rolling(ONLINE_S, OnlineLatencies)
        self._recent = Rolling(RATE_S, OnlineLatencies)
        self._budgets: dict[str, BudgetRecord] = {}  # by profile key
        self._batches: dict[str, tuple[BatchRecord, RateWindow]] = {}
        self._ended: dict[str, BatchRecord] = {}  # in the order in which they were heard of
        self._num_ended: Counter[str] = Counter()  # by owner
        self.batch_counts = BatchCounts()

    def on_heartbeat(self, now_s: float, beat: Heartbeat) -> None:
        known = self._executors.get(beat.info.executor_id)
        if known is None or known.beat.info.epoch != beat.info.epoch:
            known = self._executors[beat.info.executor_id] = _ExecutorWatch()
        known.on_heartbeat(now_s, beat)

    def on_served(self, now_s: float, served: OnlineServed) -> None:
        self._online.add(now_s, served.latencies)
        self._recent.add(now_s, served.latencies)

    def on_budget(self, profile_key: str, record: BudgetRecord | None) -> None:
        """None for one that was withdrawn."""
        if record is None:
            self._budgets.pop(profile_key, None)
        else:
            self._budgets[profile_key] = record

    def on_batch(self, now_s: float, batch_id: str, record: BatchRecord | None) -> None:
        """None for one that was deleted."""
        self.batch_counts.on_batch(batch_id, record)
        if batch_id in self._ended:
            self._forget_ended(batch_id)
        if record is not None and record.status in OPEN_STATUSES:
            _, rate = self._batches.get(batch_id, (record, RateWindow(BATCH_RATE_S)))
            rate.add(now_s, record.request_counts.done)
            self._batches[batch_id] = record, rate
            return
        self._batches.pop(batch_id, None)
        if record is not None:
            self._ended[batch_id] = record
            self._num_ended[record.owner] += 1
            if self._num_ended[record.owner] > MAX_ENDED:
                self._forget_ended(next(each.id for each in self._ended.values() if each.owner == record.owner))

    def has_beaten(self, executor_ids: Iterable[str], num_beats: int) -> bool:
        """Each of these has, so often; rates are known from the second time on."""
        beaten = (self._executors[each].num_beats if each in self._executors else 0 for each in executor_ids)
        return all(count >= num_beats for count in beaten)

    def view(self, now_s: float, sees: Sees = _sees_all) -> StackView:
        """Executors by id. ``sees``: of which batches it tells."""
        return StackView(
            self.executors(now_s),
            self._online.total(now_s),
            self.batches(now_s, sees),
            self.ended(sees),
            dict(sorted(self._budgets.items())),
        )

    def batches(self, now_s: float, sees: Sees) -> list[BatchView]:
        """Those that have not ended, in the order in which they were made."""
        known = [each for each in self._batches.values() if sees(each[0])]
        known.sort(key=lambda each: (each[0].created_at, each[0].id))
        return [_batch_view(record, rate, now_s) for record, rate in known]

    def ended(self, sees: Sees) -> list[BatchRecord]:
        """Those that ended last, the newest first."""
        known = [record for record in self._ended.values() if sees(record)]
        return sorted(known, key=lambda record: (ended_at(record), record.id), reverse=True)[:MAX_ENDED]

    def executors(self, now_s: float) -> list[ExecutorView]:
        """Those that live, by id; the others are forgotten."""
        for executor_id in [each for each, watch in self._executors.items() if watch.beaten_s <= now_s - GONE_S]:
            del self._executors[executor_id]
        roles = acting_roles(watch.beat for watch in self._executors.values())
        return [
            watch.view(now_s, self._budgets.get(watch.beat.info.profile_key), roles[executor_id])
            for executor_id, watch in sorted(self._executors.items())
        ]

    def recent(self, now_s: float) -> OnlineLatencies:
        """What users got in the last seconds, the same as of step times."""
        return self._recent.total(now_s)

    def lines_left(self) -> int:
        """Of all batches that have not ended."""
        return sum(record.request_counts.left for record, _ in self._batches.values())

    def _forget_ended(self, batch_id: str) -> None:
        owner = self._ended.pop(batch_id).owner
        self._num_ended[owner] -= 1
        if not self._num_ended[owner]:
            del self._num_ended[owner]


class _ExecutorWatch:
    """One incarnation of an executor, from its first heartbeat on."""

    beat: Heartbeat  # the last one, and when it came
    beaten_s: float

    def __init__(self) -> None:
        self.num_beats = 0
        self._steps, self._busy_s, self._online, self._offline = (RateWindow(RATE_S) for _ in range(4))
        self._online_s, self._online_alone_s = RateWindow(SLOWDOWN_S), RateWindow(SLOWDOWN_S)
        self._step_ms = Rolling(RATE_S, LatencyHistogram)

    def on_heartbeat(self, now_s: float, beat: Heartbeat) -> None:
        self.beat, self.beaten_s = beat, now_s
        self.num_beats += 1
        counters = beat.counters
        self._steps.add(now_s, counters.steps)
        self._busy_s.add(now_s, counters.busy_s)
        self._online.add(now_s, counters.online_tokens)
        self._offline.add(now_s, counters.offline_tokens)
        self._online_s.add(now_s, counters.online_s)
        self._online_alone_s.add(now_s, counters.online_alone_s)
        self._step_ms.add(now_s, beat.step_ms)

    def view(self, now_s: float, budget: BudgetRecord | None, acts_as: Role) -> ExecutorView:
        busy = self._busy_s.per_s()
        busy_share = None if busy is None else min(1.0, busy)  # a step counts when it ends, with what it took before
        rates = (self._steps.per_s(), busy_share, self._online.per_s(), self._offline.per_s())
        taken, alone = self._online_s.per_s(), self._online_alone_s.per_s()
        slowdown = taken / alone if taken and alone else None
        budget_ms = _budget_ms(budget, self.beat)
        return ExecutorView(self.beat, self._step_ms.total(now_s), budget_ms, *rates, slowdown, acts_as)


def ended_at(record: Batch) -> int:
    """Unix seconds; 0 for a batch that has not ended."""
    times = (record.completed_at, record.failed_at, record.expired_at, record.cancelled_at)
    return max((each for each in times if each is not None), default=0)


def _batch_view(record: BatchRecord, rate: RateWindow, now_s: float) -> BatchView:
    counts, per_s = record.request_counts, rate.per_s(now_s)
    return BatchView(record, counts.done, per_s, counts.left / per_s if per_s and counts.total else None)


def _budget_ms(budget: BudgetRecord | None, beat: Heartbeat) -> float | None:
    if budget is None:
        return None
    if beat.online_running + beat.online_waiting > 0:
        return None if budget.tolerance is not None else budget.latency_budget_ms
    if not budget.idle_budget_ms and (beat.info.spec.is_interruptible or budget.tolerance is not None):
        return None
    return max(budget.latency_budget_ms, budget.idle_budget_ms)
