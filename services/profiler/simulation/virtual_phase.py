"""One measured window in virtual time: online requests, a backlog, or both together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from loadgen.client.records import RequestRecord
from loadgen.report.metrics import online_report
from loadgen.report.outcome import PhaseOutcome
from loadgen.report.report import OfflineReport
from services.profiler.simulation.requests import Arrivals, Backlog, Waiting
from shared.protocol.sampling import FinishReason
from shared.replica.outputs import Ended
from shared.scheduling.request import OFFLINE
from shared.simulation.executor import Progress, VirtualExecutor
from shared.simulation.system import VirtualSystem

MakeSystem = Callable[[Callable[[Progress], None]], VirtualSystem]  # around whoever hears of progress


@dataclass(slots=True, eq=False)
class VirtualPhase:
    """Runs for ``duration_s`` and then until the last online answer is in; offline work goes on until then, but
    counts only within the window. Time is in seconds from the window's start. ``backlog``: None is without offline
    work; ``on_change``: called after each step."""

    make_system: InitVar[MakeSystem]
    arrivals: Arrivals
    backlog: Backlog | None
    duration_s: float
    on_change: Callable[[VirtualPhase], None] | None = None
    system: VirtualSystem = field(init=False)
    records: list[RequestRecord] = field(init=False, default_factory=list)
    num_online_finished: int = field(init=False, default=0)
    num_online_failed: int = field(init=False, default=0)
    num_offline_finished: int = field(init=False, default=0)
    num_steps: int = field(init=False, default=0)
    busy_s: float = field(init=False, default=0.0)  # of all executors, within the window
    _open: dict[str, RequestRecord] = field(init=False, default_factory=dict)  # online requests under way
    _counted: Counter[str] = field(init=False, default_factory=Counter)  # offline, ended within the window
    _last_counted_s: float = field(init=False, default=0.0)
    _is_stopped: bool = field(init=False, default=False)

    def __post_init__(self, make_system: MakeSystem) -> None:
        self.system = make_system(self._apply)

    @property
    def backlog_size(self) -> int:
        return len(self.backlog) if self.backlog is not None else 0

    @property
    def executor(self) -> VirtualExecutor:
        """The only one. Raises ValueError where there are more."""
        (executor,) = self.system.executors.values()
        return executor

    @property
    def now_s(self) -> float:
        return self.system.events.now_s

    @property
    def num_offline_tokens(self) -> int:
        """Prompt and output tokens of offline requests that ended within the window so far."""
        return self._counted["input_tokens"] + self._counted["output_tokens"]

    @property
    def offline_cached_share(self) -> float:
        """Of their prompts' tokens, those that were found in the prefix cache when they first started."""
        return self._counted["cached_tokens"] / max(1, self._counted["input_tokens"])

    def stop(self) -> None:
        """From ``on_change``: ``run`` returns at once, and what was measured so far is there."""
        self._is_stopped = True

    def run(self, drain: bool = False) -> None:
        """To the end of the window, of every online answer and, with ``drain``, of the backlog; or until stopped."""
        if self.backlog is not None:
            self._offer(self.backlog.begin())
        events = self.system.events
        while not self._is_over(drain):
            arrival_s, event_s = self.arrivals.next_s, events.next_s
            if arrival_s is not None and (event_s is None or arrival_s <= event_s):
                events.advance(arrival_s)
                self._arrive()
            elif event_s is not None:
                events.run_next()
            elif self.now_s < self.duration_s:
                events.advance(self.duration_s)
            else:
                return

    @property
    def how_far(self) -> str:
        """Where it was when it was stopped."""
        if self.now_s < self.duration_s:
            return f"after {self.now_s:.1f} of its {self.duration_s:g} s"
        return "at its end"

    def outcome(self) -> PhaseOutcome:
        """What was measured so far."""
        end_s = min(self.duration_s, self.now_s) or self.duration_s
        return PhaseOutcome(
            online=online_report(self.records, 0.0, end_s) if len(self.arrivals) else None,
            offline=self._offline_report(end_s) if self.backlog_size else None,
            records=self.records,
            idle_share=max(0.0, 1.0 - self.busy_s / end_s / len(self.system.executors)),
        )

    def _is_over(self, drain: bool) -> bool:
        if self._is_stopped:
            return True
        if self.now_s < self.duration_s or self._open or self.arrivals.next_s is not None:
            return False
        return not drain or self.num_offline_finished == self.backlog_size

    def _offer(self, requests: Sequence[Waiting]) -> None:
        """They come into the pool; those after them when it is their time."""
        assert self.backlog is not None
        backlog, events = self.backlog, self.system.events
        self.system.queue.add(requests)
        if backlog.next_s is not None:
            events.at(max(events.now_s, backlog.next_s), lambda: self._offer(backlog.take(events.now_s)))

    def _arrive(self) -> None:
        request = self.arrivals.take()
        record = RequestRecord(request.arrival_s, request.arrival_s, prompt_tokens=len(request.prompt_token_ids))
        self.records.append(record)
        self._open[request.request_id] = record
        self.system.submit(request)

    def _apply(self, progress: Progress) -> None:
        self.num_steps += progress.end_s > progress.start_s
        self.busy_s += max(0.0, min(progress.end_s, self.duration_s) - progress.start_s)
        open_records, now_s = self._open, self.now_s
        for _, output in progress.outputs:
            open_records[output.request_id].token_times_s.append(now_s)
        for ended in progress.ended:
            self._end(ended, now_s)
        if self.on_change is not None:
            self.on_change(self)

    def _end(self, ended: Ended, end_s: float) -> None:
        sequence = ended.sequence
        num_output_tokens = len(sequence.token_ids) - sequence.num_prompt_tokens
        failed = ended.finish_reason is FinishReason.ERROR
        if sequence.kind is OFFLINE:
            self._end_offline(sequence.num_prompt_tokens, sequence.num_cached_tokens, num_output_tokens, failed)
            return
        record = self._open.pop(sequence.request_id)
        if failed:
            record.error = ended.error
            self.num_online_failed += 1
        elif sequence.unpublished:
            record.token_times_s.append(end_s)
        record.finished_s = end_s
        record.output_tokens = num_output_tokens
        self.num_online_finished += 1

    def _end_offline(self, num_prompt_tokens: int, cached_tokens: int, output_tokens: int, failed: bool) -> None:
        self.num_offline_finished += 1
        if self.now_s < self.duration_s:
            self._counted.update(completed=not failed, errors=failed, output_tokens=output_tokens)
            self._counted["input_tokens"] += 0 if failed else num_prompt_tokens
            self._counted["cached_tokens"] += cached_tokens
            self._last_counted_s = self.now_s
        assert self.backlog is not None
        if following := self.backlog.end(self.now_s):
            self.system.queue.add(following)

    def _offline_report(self, end_s: float) -> OfflineReport:
        exhausted = self._counted["completed"] + self._counted["errors"] == self.backlog_size
        return OfflineReport.counted(
            mode="batch",
            backlog=self.backlog_size,
            elapsed_s=self._last_counted_s if exhausted else end_s,
            exhausted=exhausted,
            **{name: self._counted[name] for name in ("completed", "errors", "input_tokens", "output_tokens")},
        )
