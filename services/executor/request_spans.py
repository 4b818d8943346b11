"""Spans of the requests that are traced: how long each waited, was prefilled and decoded here; of a batch's line all of
that together as well.

Told what the executor tells others: which requests came, what a step starts with, what was generated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.clock import Clock
from shared.process.tracing import Attributes, Tracing
from shared.protocol.requests import GenerateRequest
from shared.protocol.steps import StepStarted
from shared.replica.outputs import AddressedOutput

STEPS_A_SPAN = 16  # of a request's decode steps one has a span of its own


@dataclass(slots=True)
class _Traced:
    """Unix times. ``began_s``: of the phase that it is in. ``step_s``: when the step began that is to have a span."""

    parent: str
    num_prompt_tokens: int
    came_s: float
    began_s: float
    is_line: bool
    phase: str
    num_steps: int = 0
    num_tokens: int = 0
    step_s: float | None = None


class RequestSpans:
    """Of one executor. Without traced requests each call returns at once."""

    def __init__(self, tracing: Tracing, executor_id: str, clock: Clock) -> None:
        self._tracing = tracing
        self._about: Attributes = {"slackwater.executor_id": executor_id}
        self._clock = clock
        self._traced: dict[str, _Traced] = {}

    def came(self, request: GenerateRequest, phase: str = "waiting") -> None:
        """It waits for its first step, or, where it comes with its KV from another executor, is decoded from now on."""
        if self._tracing.is_on and request.traceparent:
            num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
            now_s, is_line = self._clock.unix_s(), not request.gateway_id
            self._traced[request.request_id] = _Traced(request.traceparent, num_tokens, now_s, now_s, is_line, phase)

    def handed_over(self, request_id: str, taker_id: str, held_s: float) -> None:
        """It is at another executor now; ``held_s``: seconds in which nobody ran it."""
        traced = self._traced.pop(request_id, None)
        if traced is not None:
            now_s = self._clock.unix_s()
            self._next(traced, "", now_s - held_s)
            self._tracing.note(
                "handing over", now_s - held_s, now_s, traced.parent, self._about | {"slackwater.taker_id": taker_id}
            )

    def step_started(self, message: StepStarted) -> None:
        """Those in it run; those that ended without tokens are over."""
        if not self._traced:
            return
        now_s = self._clock.unix_s()
        for entry in message.entries:
            if (traced := self._traced.get(entry.request_id)) is not None:
                if traced.phase == "waiting":
                    self._next(traced, "prefill", now_s)
                traced.step_s = now_s if traced.num_steps % STEPS_A_SPAN == 0 else None
                traced.num_steps += 1
        for ended in message.ended:
            self._end(ended.request_id, now_s, str(ended.finish_reason.value))

    def tokens(self, step: int, outputs: Iterable[AddressedOutput]) -> None:
        """What a step brought."""
        if not self._traced:
            return
        now_s = self._clock.unix_s()
        for _, output in outputs:
            traced = self._traced.get(output.request_id)
            if traced is None:
                continue
            if output.token_ids:
                self._note_step(traced, step, now_s)
                traced.num_tokens += len(output.token_ids)
                if traced.phase == "prefill":
                    self._next(traced, "decode", now_s)
            if output.finish_reason is not None:
                self._end(output.request_id, now_s, str(output.finish_reason.value))

    def _note_step(self, traced: _Traced, step: int, now_s: float) -> None:
        if traced.step_s is not None and traced.phase == "decode":
            about = self._about | {"slackwater.step": step, "slackwater.output_tokens": traced.num_tokens}
            self._tracing.note("decode step", traced.step_s, now_s, traced.parent, about)
        traced.step_s = None

    def _next(self, traced: _Traced, phase: str, now_s: float, reason: str = "") -> None:
        about = self._about | {
            "slackwater.prompt_tokens": traced.num_prompt_tokens,
            "slackwater.output_tokens": traced.num_tokens,
        }
        about |= {"slackwater.finish_reason": reason} if reason else {}
        self._tracing.note(traced.phase, traced.began_s, now_s, traced.parent, about)
        traced.phase, traced.began_s = phase, now_s

    def _end(self, request_id: str, now_s: float, reason: str) -> None:
        traced = self._traced.pop(request_id, None)
        if traced is not None:
            self._next(traced, "", now_s, reason)
            if traced.is_line:
                about = self._about | {"slackwater.request_id": request_id}
                self._tracing.note("batch line", traced.came_s, now_s, traced.parent, about)
