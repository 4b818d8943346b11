"""TCP ports of this machine."""

import errno
import socket

from shared.errors import StackError


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


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
