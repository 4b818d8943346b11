"""A stack's last minutes, hour and day, so that a page that is opened has its curves at once."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import floor
from statistics import fmean

from services.gateway.http.tally import HttpTally
from shared.latency.histogram import LatencyHistogram
from shared.watch.stack_watch import StackWatch

SPAN_S = 300
COARSE = {"hour": (10, 360), "day": (300, 288)}  # seconds of a row, and how many rows there are

BLOCK_OWNERS = ("online", "shared", "offline", "paused", "cached", "empty")
COLUMNS = (
    *("unix_s", "online_running", "online_waiting", "offline_running", "lines_left"),
    *("online_tokens_per_s", "offline_tokens_per_s"),
    *("step_mean_ms", "step_p99_ms", "budget_ms"),
    *("ttft_p50_ms", "ttft_p99_ms", "tbt_p50_ms", "tbt_p99_ms", "e2e_p50_ms", "e2e_p99_ms"),
    *("http_client_errors", "http_server_errors", "http_refused"),  # in a minute, at the rate of this row
    *(f"kv_{owner}" for owner in BLOCK_OWNERS),
)

Row = tuple[float | None, ...]  # in the order of COLUMNS; None where there was nothing to measure


class History:
    """Rows of all executors together, and of this gateway's HTTP answers. Latencies are those of the seconds before
    (``RATE_S`` of the watch). Rows of the hour and the day are of so many seconds each: the largest p99, the last time,
    the mean of all else."""

    def __init__(self, tally: HttpTally) -> None:
        self._tally = tally
        self._seen = (0, 0, 0)  # of the tally, at the row before
        self._seen_s: float | None = None
        self._rows: deque[Row] = deque(maxlen=SPAN_S)
        self._coarse = {name: _Coarse(*size) for name, size in COARSE.items()}
        self.num_recorded = 0  # also those that are forgotten by now

    def record(self, watch: StackWatch, now_s: float, unix_s: float) -> None:
        """One more row; the oldest goes where there are too many."""
        row = _row(watch, now_s, unix_s, self._errors_per_minute(now_s))
        self._rows.append(row)
        for coarse in self._coarse.values():
            coarse.add(now_s, row)
        self.num_recorded += 1

    def since(self, num_recorded: int) -> list[Row]:
        """Those after the first ``num_recorded``, as far as they are kept, the oldest first."""
        num_new = min(self.num_recorded - num_recorded, len(self._rows))
        return [self._rows[index] for index in range(len(self._rows) - num_new, len(self._rows))]

    def coarse(self, name: str) -> list[Row]:
        """One of COARSE; its last row grows until its time is over."""
        return self._coarse[name].rows()

    def _errors_per_minute(self, now_s: float) -> list[float]:
        tally = self._tally
        seen = tally.num_client_errors, tally.num_server_errors, tally.num_refused
        passed_s = 1.0 if self._seen_s is None else max(now_s - self._seen_s, 1e-3)
        gains = [60.0 * (after - before) / passed_s for before, after in zip(self._seen, seen, strict=True)]
        self._seen, self._seen_s = seen, now_s
        return gains


class _Coarse:
    """At most ``num_rows`` of ``row_s`` each."""

    def __init__(self, row_s: int, num_rows: int) -> None:
        self._row_s = row_s
        self._rows: deque[Row] = deque(maxlen=num_rows)
        self._open: list[Row] = []  # of the time that is not over
        self._number = 0

    def add(self, now_s: float, row: Row) -> None:
        number = floor(now_s / self._row_s)
        if self._open and number != self._number:
            self._rows.append(_merged(self._open))
            self._open = []
        self._number = number
        self._open.append(row)

    def rows(self) -> list[Row]:
        return [*self._rows, *([_merged(self._open)] if self._open else [])]


def _merged(rows: Sequence[Row]) -> Row:
    columns = zip(COLUMNS, zip(*rows, strict=True), strict=True)
    return tuple(_merge(name, [value for value in column if value is not None]) for name, column in columns)


def _merge(name: str, values: Sequence[float]) -> float | None:
    if not values:
        return None
    join: Callable[[Sequence[float]], float] = max if "_p99_" in name or name == "unix_s" else fmean
    value = join(values)
    return value if name == "unix_s" else _rounded(value)


def _row(watch: StackWatch, now_s: float, unix_s: float, errors: Iterable[float]) -> Row:
    executors = watch.executors(now_s)
    beats = [executor.beat for executor in executors]
    online = watch.recent(now_s)
    budgets_ms = [executor.budget_ms for executor in executors if executor.budget_ms is not None]
    step_ms = LatencyHistogram()
    for executor in executors:
        step_ms.merge(executor.step_ms)
    latencies = online.ttft_ms, online.tbt_ms, online.e2e_ms
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
        *(_rounded(each.quantile_ms(share)) for each in latencies for share in (0.5, 0.99)),
        *map(_rounded, errors),
        *(sum(getattr(beat.blocks, owner) for beat in beats) for owner in BLOCK_OWNERS),
    )


def _total(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.4g}") if value else value
