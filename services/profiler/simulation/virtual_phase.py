"""One measured window in virtual time: online requests, a backlog, or both together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.client.records import RequestRecord
from loadgen.report.metrics import online_report
from loadgen.report.outcome import PhaseOutcome
from loadgen.report.report import OfflineReport
from loadgen.workload.prompts import PromptMaker
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.virtual_executor import Step, VirtualExecutor
from shared.protocol.messages import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.replica.replica import Ended
from shared.scheduling.request import Kind

ONLINE_SEEDS = 1 << 23  # apart from those of offline requests


class VirtualPhase:
    """Runs for ``duration_s`` and then until the last online answer is in; offline work goes on until then, but
    counts only within the window. Time is in seconds from the window's start."""

    def __init__(
        self,
        executor: VirtualExecutor,
        requests: Sequence[TraceRequest],
        prompts: PromptMaker[int],
        backlog_size: int,
        duration_s: float,
        on_change: Callable[[VirtualPhase], None] | None = None,
        client_ids: Sequence[str] | None = None,
    ) -> None:
        """``client_ids``: whom each request is from; None is one client."""
        self.executor = executor
        self.backlog_size = backlog_size
        self.records: list[RequestRecord] = []
        self.num_online_finished = 0
        self.num_online_failed = 0
        self.num_offline_finished = 0
        self.busy_s = 0.0  # within the window
        self.now_s = 0.0
        self._requests = requests
        self._prompts = prompts
        self._duration_s = duration_s
        self._on_change = on_change
        self._client_ids = client_ids
        self._open: dict[str, RequestRecord] = {}  # online requests under way
        self._counted = _OfflineCount()

    def run(self, drain: bool = False) -> None:
        """To the end of the window, of every online answer and, with ``drain``, of the backlog."""
        while not self._is_over(drain):
            self._arrive()
            step = self.executor.run_step(self.now_s)
            if step is not None:
                self._apply(step)
                continue
            next_s = self._next_event_s()
            if next_s is None:
                return
            self.now_s = next_s

    def outcome(self) -> PhaseOutcome:
        """What was measured so far."""
        end_s = min(self._duration_s, self.now_s) or self._duration_s
        has_online = bool(self._requests)
        return PhaseOutcome(
            online=online_report(self.records, 0.0, end_s) if has_online else None,
            offline=self._offline_report(end_s) if self.backlog_size else None,
            records=self.records,
            idle_share=max(0.0, 1.0 - self.busy_s / end_s),
        )

    def _is_over(self, drain: bool) -> bool:
        if self.now_s < self._duration_s or self._open or len(self.records) < len(self._requests):
            return False
        return not drain or self.num_offline_finished == self.backlog_size

    def _arrive(self) -> None:
        """Submit what is due."""
        while len(self.records) < len(self._requests):
            index = len(self.records)
            request = self._requests[index]
            if request.arrival_s > self.now_s:
                return
            record = RequestRecord(request.arrival_s, request.arrival_s, prompt_tokens=request.num_prompt_tokens)
            self.records.append(record)
            generate = self._generate(request, index)
            self._open[generate.request_id] = record
            self.executor.submit(generate)
            for ended in self.executor.take_ended():
                self._end(ended, self.now_s)

    def _generate(self, request: TraceRequest, index: int) -> GenerateRequest:
        token_ids = self._prompts.prompt(request, index)
        assert isinstance(token_ids, list)
        sampling = SamplingParams(
            max(1, request.num_output_tokens), temperature=0.0, seed=ONLINE_SEEDS + index, ignore_eos=True
        )
        client_id = self._client_ids[index] if self._client_ids else ""
        return GenerateRequest(
            f"online-{index}", Kind.ONLINE, token_ids, sampling, request.arrival_s, client_id=client_id
        )

    def _next_event_s(self) -> float | None:
        """When an idle executor gets work; None where it never does."""
        times = [self._requests[len(self.records)].arrival_s] if len(self.records) < len(self._requests) else []
        release_s = self.executor.next_s(self.now_s)
        times += [] if release_s is None else [release_s]
        if not times and self.now_s < self._duration_s:
            return self._duration_s
        return min(times, default=None)

    def _apply(self, step: Step) -> None:
        self.busy_s += max(0.0, min(step.end_s, self._duration_s) - self.now_s)
        self.now_s = end_s = step.end_s
        open_records = self._open
        for _, output in step.outputs:
            open_records[output.request_id].token_times_s.append(end_s)
        for ended in step.ended:
            self._end(ended, end_s)
        if self._on_change is not None:
            self._on_change(self)

    def _end(self, ended: Ended, end_s: float) -> None:
        sequence = ended.sequence
        num_output_tokens = len(sequence.token_ids) - sequence.num_prompt_tokens
        failed = ended.finish_reason is FinishReason.ERROR
        if sequence.kind is Kind.OFFLINE:
            self.num_offline_finished += 1
            if end_s < self._duration_s:
                self._counted.add(sequence.num_prompt_tokens, num_output_tokens, failed, end_s)
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

    def _offline_report(self, end_s: float) -> OfflineReport:
        counted = self._counted
        exhausted = counted.completed + counted.errors == self.backlog_size
        return OfflineReport.counted(
            mode="batch",
            backlog=self.backlog_size,
            completed=counted.completed,
            errors=counted.errors,
            input_tokens=counted.input_tokens,
            output_tokens=counted.output_tokens,
            elapsed_s=counted.last_s if exhausted else end_s,
            exhausted=exhausted,
        )


class _OfflineCount:
    """Offline requests that ended within the window."""

    def __init__(self) -> None:
        self.completed = 0
        self.errors = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.last_s = 0.0

    def add(self, input_tokens: int, output_tokens: int, failed: bool, end_s: float) -> None:
        self.errors += failed
        self.completed += not failed
        self.input_tokens += 0 if failed else input_tokens
        self.output_tokens += output_tokens
        self.last_s = end_s
