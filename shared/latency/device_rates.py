"""What a device reaches with the kernels that run on it (OOCO Table 4)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from shared.latency.devices import Device
from shared.latency.model import require_sound

# What kernels reach of the data sheet's figures.
GEMM_FLOPS_REACHED = 0.6
PREFILL_ATTENTION_FLOPS_REACHED = 0.5
DECODE_ATTENTION_FLOPS_REACHED = 0.25  # one query a head leaves most of a tensor core's tile empty
MEMORY_REACHED = 0.8
LINK_REACHED = 0.8


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Of one device. Raises ValueError for a rate that is not positive, an overhead that is negative, and one of either
    that is not finite."""

    gemm_flops_per_ms: float  # F_g
    prefill_attention_flops_per_ms: float  # F_ap
    decode_attention_flops_per_ms: float  # F_ad
    gemm_bytes_per_ms: float  # M_g
    attention_bytes_per_ms: float  # M_a
    prefill_overhead_ms: float  # O_p: launches and the engine's own work around a forward pass with prefills
    decode_overhead_ms: float  # O_d: of one with decodes
    link_bytes_per_ms: float | None = None  # B_c; None where the model is on one device

    def __post_init__(self) -> None:
        values = [(each.name, getattr(self, each.name)) for each in fields(self)]
        require_sound((name, value) for name, value in values if value is not None)
        for name, value in values:
            if value == 0 and not name.endswith("overhead_ms"):
                raise ValueError(f"rate {name} is 0; it must be positive")

    @classmethod
    def of_data_sheet(cls, device: Device, overhead_ms: float) -> DeviceRates:
        """Shares of what it promises."""
        flops_per_ms = device.half_flops_per_s / 1e3
        bytes_per_ms = device.memory_bytes_per_s * MEMORY_REACHED / 1e3
        return cls(
            gemm_flops_per_ms=flops_per_ms * GEMM_FLOPS_REACHED,
            prefill_attention_flops_per_ms=flops_per_ms * PREFILL_ATTENTION_FLOPS_REACHED,
            decode_attention_flops_per_ms=flops_per_ms * DECODE_ATTENTION_FLOPS_REACHED,
            gemm_bytes_per_ms=bytes_per_ms,
            attention_bytes_per_ms=bytes_per_ms,
            prefill_overhead_ms=overhead_ms,
            decode_overhead_ms=overhead_ms,
            link_bytes_per_ms=device.link_bytes_per_s * LINK_REACHED / 1e3,
        )

    def scaled(self, factor: float) -> DeviceRates:
        """Of a device on which everything takes ``factor`` times as long."""
        overheads = {name: getattr(self, name) * factor for name in ("prefill_overhead_ms", "decode_overhead_ms")}
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        rates = {name: value / factor for name, value in values.items() if name not in overheads and value is not None}
        return replace(self, **rates, **overheads)
