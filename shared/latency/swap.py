"""How long KV slots take between a GPU and its host: t_swap of BROS (section 4.1). They are copied beside a step's
execution (``shared.replica.returning``), so that the next step waits for the rest alone."""

from __future__ import annotations

from dataclasses import dataclass

from shared.latency.architectures import Architecture
from shared.latency.devices import Device
from shared.latency.roofline import LINK_REACHED, kv_heads_per_device


@dataclass(frozen=True, slots=True)
class SwapModel:
    """Linear in the slots; both directions have the bus to themselves."""

    ms_per_slot: float = 0.0

    @classmethod
    def of(cls, architecture: Architecture, device: Device, tensor_parallel: int = 1) -> SwapModel:
        """Each GPU swaps its own heads. Raises ValueError where the heads cannot be shared out."""
        kv_heads = kv_heads_per_device(architecture, tensor_parallel)
        slot_bytes = architecture.kv_bytes_per_token / architecture.num_kv_heads * kv_heads
        return cls(slot_bytes / (device.host_bytes_per_s * LINK_REACHED / 1e3))
