"""Spans of the requests that are traced: how long each waited, was prefilled and decoded here; of a batch's line all of
that together as well.

Told which requests are taken, and what the executor tells others: what a step starts with, what was generated. Of a
batch's tokens nobody is told before all are there: each later step with a line tells that the one before has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.clock import Clock
from shared.process.tracing import Attributes, Tracing
from shared.protocol.steps import StepStarted
from shared.replica.outputs import AddressedOutput
from shared.replica.sequence import LiveSequence

STEPS_A_SPAN = 16  # of a request's decode steps one has a span of its own


@dataclass(slots=True)
class _Traced:
    """Unix times. ``num_known_tokens``: of prompt and output, when it came; ``began_s``: of the phase that it is in;
    ``step``: that is to have a span, and when it began."""

    sequence: LiveSequence
    num_known_tokens: int
    came_s: float
    began_s: float
    phase: str
    num_steps: int = 0
    step: tuple[int, float] | None = None

    @property
    def num_tokens(self) -> int:
        """Generated here, of all choices."""
        num_ended = sum(len(choice.token_ids) for choice in self.sequence.ended_choices)
        return num_ended + self.sequence.num_output_tokens + self.sequence.num_prompt_tokens - self.num_known_tokens


class RequestSpans:
    """Of one executor. Without traced requests each call returns at once."""

    def __init__(self, tracing: Tracing, executor_id: str, clock: Clock) -> None:
        self._tracing = tracing
        self._about: Attributes = {"slackwater.executor_id": executor_id}
        self._clock = clock
        self._traced: dict[str, _Traced] = {}

    def came(self, sequence: LiveSequence, phase: str = "waiting") -> None:
        """It waits for its first step, or, where it comes with its KV from another executor, is decoded from now on."""
        if self._tracing.is_on and sequence.traceparent:
            now_s = self._clock.unix_s()
            self._traced[sequence.request_id] = _Traced(sequence, len(sequence.token_ids), now_s, now_s, phase)

    def handed_over(self, request_id: str, taker_id: str, held_s: float) -> None:
        """It is at another executor now; ``held_s``: seconds in which nobody ran it."""
        traced = self._traced.pop(request_id, None)
        if traced is not None:
            now_s = self._clock.unix_s()
            self._next(traced, "", now_s - held_s)
            about = self._about | {"slackwater.taker_id": taker_id}
            self._tracing.note("handing over", now_s - held_s, now_s, traced.sequence.traceparent, about)

    def step_started(self, message: StepStarted) -> None:
        """Those in it run; those that ended without tokens are over."""
        if not self._traced:
            return
        now_s = self._clock.unix_s()
        for entry in message.entries:
            if (traced := self._traced.get(entry.request_id)) is not None:
                self._end_step(traced, now_s)
                if traced.phase == "waiting":
                    self._next(traced, "prefill", now_s)
                traced.step = (message.step, now_s) if traced.num_steps % STEPS_A_SPAN == 0 else None
                traced.num_steps += 1
        for ended in message.ended:
            self._end(ended.request_id, now_s, str(ended.finish_reason.value))

    def tokens(self, outputs: Iterable[AddressedOutput]) -> None:
        """What a step brought."""
        if not self._traced:
            return
        now_s = self._clock.unix_s()
        for _, output in outputs:
            traced = self._traced.get(output.request_id)
            if traced is None:
                continue
            if output.token_ids:
                self._end_step(traced, now_s)
            if output.finish_reason is not None:
                self._end(output.request_id, now_s, str(output.finish_reason.value))

    def _end_step(self, traced: _Traced, now_s: float) -> None:
        """The last one that it was in."""
        if traced.step is not None and traced.phase == "decode":
            (number, began_s), parent = traced.step, traced.sequence.traceparent
            about = self._about | {"slackwater.step": number, "slackwater.output_tokens": traced.num_tokens}
            self._tracing.note("decode step", began_s, now_s, parent, about)
        traced.step = None
        if traced.phase == "prefill" and traced.num_tokens:
            self._next(traced, "decode", now_s)

    def _next(self, traced: _Traced, phase: str, now_s: float, reason: str = "") -> None:
        about = self._about | {
            "slackwater.prompt_tokens": traced.num_known_tokens,
            "slackwater.output_tokens": traced.num_tokens,
        }
        about |= {"slackwater.finish_reason": reason} if reason else {}
        self._tracing.note(traced.phase, traced.began_s, now_s, traced.sequence.traceparent, about)
        traced.phase, traced.began_s = phase, now_s

    def _end(self, request_id: str, now_s: float, reason: str) -> None:
        traced = self._traced.pop(request_id, None)
        if traced is not None:
            self._next(traced, "", now_s, reason)
            if not traced.sequence.gateway_id:
                about = self._about | {"slackwater.request_id": request_id}
                self._tracing.note("batch line", traced.came_s, now_s, traced.sequence.traceparent, about)
