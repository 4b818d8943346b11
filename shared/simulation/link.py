"""How long KV takes from one executor's memory to another's, where only the time is known."""

from __future__ import annotations

from dataclasses import dataclass

from shared.latency.architectures import Architecture
from shared.latency.device_rates import LINK_REACHED
from shared.latency.devices import Device
from shared.latency.operators import kv_heads_per_device

READ_LATENCY_S = 0.001  # to set up a read and to learn that it is done


@dataclass(frozen=True, slots=True)
class Link:
    """From each executor to each other; ``s_per_token``: of KV, of all layers."""

    s_per_token: float = 0.0
    latency_s: float = READ_LATENCY_S

    @classmethod
    def of(cls, architecture: Architecture, device: Device, tensor_parallel: int = 1) -> Link:
        """Between GPUs that are neighbours, each of which reads the heads that it has from its like. Raises ValueError
        where the heads cannot be shared out."""
        kv_heads = kv_heads_per_device(architecture, tensor_parallel)
        token_bytes = architecture.kv_bytes_per_token / architecture.num_kv_heads * kv_heads
        return cls(token_bytes / (device.link_bytes_per_s * LINK_REACHED))

    def read_s(self, num_tokens: int) -> float:
        """One request's KV."""
        return self.latency_s + num_tokens * self.s_per_token


NO_TIME = Link(latency_s=0.0)


class LinkTimeline:
    """Reads of one link run one after the other: an executor's memory is read by one at a time, and reads from one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_s: dict[str, float] = {}  # by executor

    def read(self, giver: str, taker: str, num_tokens: int, now_s: float) -> float:
        """When a read is done that could begin now."""
        start_s = max(now_s, self._free_s.get(giver, 0.0), self._free_s.get(taker, 0.0))
        end_s = start_s + self._link.read_s(num_tokens)
        self._free_s[giver] = self._free_s[taker] = end_s
        return end_s
