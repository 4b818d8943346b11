"""What is in this machine: cores, GPUs, and a torch that can use them."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NVIDIA_SMI_S = 10.0


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def gpus() -> list[str]:
    """As the driver names them, with their memory; empty without one that answers."""
    smi = shutil.which("nvidia-smi")
    if smi is None or not Path("/dev/nvidiactl").exists():
        return []
    command = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()]


def has_cpu_torch() -> bool:
    """The installed torch is one that cannot use GPUs."""
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False
