"""What was answered with 200 stays so: files until they are deleted, deletions, keys and their revocations."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.history import File, History, Key, Read
from tests.checker.violation import Limits, Violation

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
BUSY = frozenset({429, 500, 503, None})  # of a read: nothing is said about the file


def check_files(history: History, limits: Limits) -> Iterator[Violation]:
    for file in history.files:
        for read in file.reads:
            yield from _wrong_read(file, read)
        yield from _wrong_end(file, history.calm_s)


def _wrong_read(file: File, read: Read) -> Iterator[Violation]:
    may_be_gone = file.stored is not True or (file.delete_sent_s is not None and read.at_s >= file.delete_sent_s)
    if read.status == OK and not read.is_same:
        yield Violation("a file is what was sent", f"other bytes at {read.at_s:.1f} s", file)
    elif read.status == NOT_FOUND and not may_be_gone:
        yield Violation("nothing accepted is gone", f"404 at {read.at_s:.1f} s", file)


def _wrong_end(file: File, calm_s: float) -> Iterator[Violation]:
    """When all is well: a stored file is there and in the list, one that was deleted or never stored in neither."""
    last = next((read for read in reversed(file.reads) if read.at_s >= calm_s), None)
    is_there = None if last is None or last.status in BUSY else last.status == OK
    if file.stored is True and file.delete_sent_s is None:
        if is_there is None and last is not None:
            yield Violation("all is well at the end", f"status {last.status}", file)
        if file.listed is False:
            yield Violation("nothing accepted is gone", "it is not in the list", file)
    elif (file.deleted is True or file.stored is False) and (is_there or file.listed):
        yield Violation("what is gone stays gone", "it is there at the end", file)


def check_keys(history: History, limits: Limits) -> Iterator[Violation]:
    """While faults go on a gateway may not have heard of a key yet; once all is well it has."""
    for key in history.keys:
        for tried in key.tries:
            if tried.at_s >= history.calm_s + limits.key_settles_s and tried.status is not None:
                yield from _wrong_try(key, tried.status, tried.server)


def _wrong_try(key: Key, status: int, server: str) -> Iterator[Violation]:
    if key.revoked_s is not None and status != UNAUTHORIZED:
        yield Violation("a revoked key is refused", f"status {status} from {server}", key)
    elif key.made_s is not None and key.revoke_sent_s is None and status == UNAUTHORIZED:
        yield Violation("a key is valid", f"401 from {server}", key)
