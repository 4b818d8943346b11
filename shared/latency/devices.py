"""GPUs by name, from their data sheets."""

from dataclasses import dataclass

from shared.named import named


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. ``link_bytes_per_s``: to its neighbours; ``host_bytes_per_s``: to the host; both in one direction."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    half_flops_per_s: float  # dense, tensor cores, fp16 or bf16
    link_bytes_per_s: float
    host_bytes_per_s: float


# Data sheets give NVLink's two directions together: 600 GB/s, 900 GB/s, and 112.5 GB/s for the A40's bridge;
# and PCIe's: 64 GB/s of the fourth generation, 128 GB/s of the fifth.
DEVICES = {
    device.name: device
    for device in (
        # NVIDIA A100 Tensor Core GPU data sheet (2021), SXM column; the 40 GB figures: architecture whitepaper, table 4
        Device("a100-40g", 40e9, 1.555e12, 312e12, 300e9, 32e9),
        Device("a100-80g", 80e9, 2.039e12, 312e12, 300e9, 32e9),
        # NVIDIA A40 data sheet (2021)
        Device("a40", 48e9, 0.696e12, 149.7e12, 56.25e9, 32e9),
        # NVIDIA H100 data sheet (2023), SXM column; 1,979 TFLOPS are with sparsity, half of it without
        Device("h100", 80e9, 3.35e12, 989.5e12, 450e9, 64e9),
        # NVIDIA H200 data sheet (2024), SXM column
        Device("h200", 141e9, 4.8e12, 989.5e12, 450e9, 64e9),
    )
}


def device_named(name: str) -> Device:
    """Raises ValueError that lists the known devices."""
    return named(DEVICES, name.lower(), "device")
