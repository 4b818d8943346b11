"""What is in this machine: GPUs, a torch that can use them, and TCP ports."""

import errno
import random
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shared.errors import StackError

NVIDIA_SMI_S = 10.0
SERVER_PORTS = range(10_240, 32_768)  # below those that Linux, macOS and Windows give to clients' ends


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


def free_port() -> int:
    """One of this host's that nobody listens on now, and that no connection gets as its own end: what is started on it
    again later finds it free. Raises StackError where none is found."""
    for port in random.sample(SERVER_PORTS, k=100):
        if _bind_error(socket.AF_INET, "127.0.0.1", port) is None:
            return port
    raise StackError(f"no free port found between {SERVER_PORTS.start} and {SERVER_PORTS.stop}")


def require_free(host: str, port: int) -> None:
    """Raises StackError where the gateway could not listen there."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StackError(f"--host {host}: {error.strerror}") from error
    failures = [_bind_error(info[0], info[4][0], port) for info in infos]
    refused = [failure for failure in failures if failure and failure.errno != errno.EADDRNOTAVAIL]
    why = refused[0] if refused else failures[0] if all(failures) else None  # a name's IPv6 half may be absent
    if why:
        raise StackError(f"cannot listen on {host} port {port} ({why.strerror}); choose another with --port")


def _bind_error(family: int, address: str | int, port: int) -> OSError | None:
    try:
        with socket.create_server((str(address), port), family=family):
            return None
    except OSError as error:
        return error
