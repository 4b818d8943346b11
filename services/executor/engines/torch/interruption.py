"""A forward pass of offline work alone stops at its next layer when somebody online comes (OOCO section 3.4.1).

The place is each layer's attention, which every model calls, so that no model is changed.
"""

from __future__ import annotations

from collections import deque

import torch

from shared.replica.engine import StepBatch

LAYERS_AHEAD = 2  # of the device; what is launched there cannot be called back


class StepInterruptedError(Exception):
    """Raised within a forward pass; no failure."""


class Interruption:
    """Of an engine that runs one step at a time. ``ask`` may come from any thread, the rest is the step's."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._step: int | None = None  # that runs, where it may be interrupted
        self._asked: int | None = None
        self._launched: deque[torch.cuda.Event] = deque()  # the end of each layer that the device may not have reached

    def begin(self, batch: StepBatch) -> None:
        """A step starts."""
        self._step = batch.step if batch.may_be_interrupted else None
        self._launched.clear()

    def ask(self, step: int) -> None:
        """Have this step stop; nothing where it does not run any more."""
        self._asked = step

    def check(self) -> None:
        """Called in each layer. Raises StepInterruptedError, once the device has ended what was launched: the slots
        that it writes may be others' from then on. While a step may be interrupted, no more than a few layers of it
        wait for the device."""
        if self._step is None:
            return
        if self._is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._launched.append(event)
            if len(self._launched) > LAYERS_AHEAD:
                self._launched.popleft().synchronize()
        if self._asked == self._step:
            if self._is_cuda:
                self._launched[-1].synchronize()
            raise StepInterruptedError
