"""What is in this machine: GPUs, a torch that can use them, and TCP ports."""

import errno
import os
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
        if not _bind_errno(socket.AF_INET, "127.0.0.1", port):
            return port
    raise StackError(f"no free port found between {SERVER_PORTS.start} and {SERVER_PORTS.stop}")


def require_free(host: str, port: int) -> None:
    """Raises StackError where the gateway could not listen there."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StackError(f"--host {host}: {error.strerror}") from error
    failures = [_bind_errno(info[0], info[4][0], port) for info in infos]
    refused = [failure for failure in failures if failure not in (0, errno.EADDRNOTAVAIL)]
    why = refused[0] if refused else failures[0] if all(failures) else 0  # a name's IPv6 half may be absent
    if why:
        raise StackError(f"cannot listen on {host} port {port} ({os.strerror(why)}); choose another with --port")


def _bind_errno(family: int, address: str | int, port: int) -> int:
    """0 where one can listen there."""
    try:
        with socket.create_server((str(address), port), family=family):
            return 0
    except OSError as error:
        return error.errno or errno.EINVAL  # whose own text repeats the address
