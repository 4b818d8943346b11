"""Which GPU of ``shared.latency.devices`` this machine has."""

import torch

from shared.latency.devices import DEVICES, Device

NAMES = {
    "NVIDIA A100-SXM4-40GB": "a100-40g",
    "NVIDIA A100-SXM4-80GB": "a100-80g",
    "NVIDIA A40": "a40",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
}  # as torch calls them; other forms of these GPUs have other peaks


def this_gpu() -> Device | None:
    """None where there is no GPU, or one whose data sheet is not known here."""
    name = NAMES.get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return DEVICES[name] if name else None
