"""How many files a process may have open, sockets among them."""

import contextlib


def raise_file_limit() -> None:
    """Each request under way holds a socket: allow as many as the system does."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
