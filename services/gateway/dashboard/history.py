"""The last minutes of a stack, a row a second, so that a page that is opened has its curves at once."""

from collections import deque
from collections.abc import Iterable

from shared.latency.histogram import LatencyHistogram
from shared.watch.stack_watch import StackWatch

SPAN_S = 300

BLOCK_OWNERS = ("online", "shared", "offline", "paused", "cached", "empty")
COLUMNS = (
    *("unix_s", "online_running", "online_waiting", "offline_running", "lines_left"),
    *("online_tokens_per_s", "offline_tokens_per_s"),
    *("step_mean_ms", "step_p99_ms", "budget_ms"),
    *("ttft_p50_ms", "ttft_p99_ms", "tbt_p50_ms", "tbt_p99_ms"),
    *(f"kv_{owner}" for owner in BLOCK_OWNERS),
)

Row = tuple[float | None, ...]  # in the order of COLUMNS; None where there was nothing to measure


class History:
    """Rows of all executors together. Latencies are those of the seconds before (``RATE_S`` of the watch)."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=SPAN_S)
        self.num_recorded = 0  # also those that are forgotten by now

    def record(self, watch: StackWatch, now_s: float, unix_s: float) -> None:
        """One more row; the oldest goes where there are too many."""
        self._rows.append(_row(watch, now_s, unix_s))
        self.num_recorded += 1

    def since(self, num_recorded: int) -> list[Row]:
        """Those after the first ``num_recorded``, as far as they are kept, the oldest first."""
        num_new = min(self.num_recorded - num_recorded, len(self._rows))
        return [self._rows[index] for index in range(len(self._rows) - num_new, len(self._rows))]


def _row(watch: StackWatch, now_s: float, unix_s: float) -> Row:
    executors = watch.executors(now_s)
    beats = [executor.beat for executor in executors]
    online = watch.recent(now_s)
    budgets_ms = [executor.budget_ms for executor in executors if executor.budget_ms is not None]
    step_ms = LatencyHistogram()
    for executor in executors:
        step_ms.merge(executor.step_ms)
    return (
        round(unix_s, 1),
        sum(beat.online_running for beat in beats),
        sum(beat.online_waiting for beat in beats),
        sum(beat.offline_running for beat in beats),
        watch.lines_left(),
        _rounded(_total(executor.online_tokens_per_s for executor in executors)),
        _rounded(_total(executor.offline_tokens_per_s for executor in executors)),
        _rounded(step_ms.mean_ms()),
        _rounded(step_ms.quantile_ms(0.99)),
        _rounded(min(budgets_ms, default=None)),
        *(_rounded(each.quantile_ms(share)) for each in (online.ttft_ms, online.tbt_ms) for share in (0.5, 0.99)),
        *(sum(getattr(beat.blocks, owner) for beat in beats) for owner in BLOCK_OWNERS),
    )


def _total(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
