"""Which server a client command talks to."""

from __future__ import annotations

from pathlib import Path

from services.local.stack.data_dir import DataDir
from services.local.stack.options import StackOptions
from shared.errors import StackError


def server_url(url: str | None, data_dir: Path) -> str:
    """The given URL, else that of the stack in the data directory, else the default address."""
    if url is not None:
        return url if "://" in url else f"http://{url}"
    try:
        return DataDir(data_dir).read_stack().http_url
    except StackError:
        return StackOptions().url
