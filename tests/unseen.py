"""What asyncio says of errors that nobody saw."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_error_unseen() -> Iterator[None]:
    """In a coroutine: what is left behind in this block has no error that nobody saw, as would be logged once it is
    collected, nor is there another that the loop tells of."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    gc.collect()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert not told, told
