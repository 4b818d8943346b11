"""What a step that is interrupted leaves to a device, which runs behind the host."""

from __future__ import annotations

import pytest
import torch

from services.executor.engines.torch.interruption import LAYERS_AHEAD, Interruption, StepInterruptedError
from shared.replica.engine import StepBatch


class SlowDevice:
    """Ends nothing of what was launched before the host waits for it; stands for ``torch.cuda``."""

    def __init__(self) -> None:
        self.num_launched = self.num_ended = 0

    def new_event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: SlowDevice) -> None:
        self._device = device

    def record(self) -> None:
        self._place = self._device.num_launched

    def synchronize(self) -> None:
        self._device.num_ended = max(self._device.num_ended, self._place)


def test_a_step_is_interrupted_once_the_device_has_ended_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these write may be another request's slots from there on, and copies to them are in other streams."""
    device = SlowDevice()
    monkeypatch.setattr(torch.cuda, "Event", device.new_event)
    interruption = Interruption(torch.device("cuda"))
    for step, num_layers in enumerate((1, LAYERS_AHEAD, 10)):
        interruption.begin(StepBatch(step, [], may_be_interrupted=True))
        for _ in range(num_layers):
            interruption.check()
            device.num_launched += 1
            assert device.num_launched - device.num_ended <= LAYERS_AHEAD + 1
        interruption.ask(step)
        with pytest.raises(StepInterruptedError):
            interruption.check()
        assert device.num_ended == device.num_launched
