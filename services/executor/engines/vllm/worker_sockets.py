"""Sockets between the executor and each of vLLM's workers in processes of their own, beside what vLLM tells them."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.v1.executor import Executor

from services.executor.handover.shard_server import accept_in_thread


def connect_to_workers(
    workers: Executor, serve: Callable[..., Path | str], args: tuple[Any, ...]
) -> list[socket.socket] | str:
    """In the order of the workers: before the first step, whose messages go the same way as this call. ``serve`` is
    called in each with the worker, a folder for its socket and ``args``, and returns what ``serve_in_folder`` does, or
    why it cannot, in words: then nothing is connected, and this is the answer."""
    with tempfile.TemporaryDirectory(prefix="slackwater-kv-") as folder:
        paths = workers.collective_rpc(serve, args=(folder, *args))
        problems = [path for path in paths if isinstance(path, str)]
        if problems:
            return problems[0]
        connections = []
        for path in paths:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            connections.append(connection)
    return connections


def serve_in_folder(folder: str, name: str, serve: Callable[[socket.socket], None]) -> Path | str:
    """In a worker's process: serve the executor in a thread of this name, over the socket whose path is returned; or
    why it cannot be reached, in words."""
    path = Path(folder) / str(os.getpid())
    try:
        accept_in_thread(path, name, serve)
    except OSError as error:
        return f"vLLM's workers cannot be reached in {folder}: {error}"
    return path
