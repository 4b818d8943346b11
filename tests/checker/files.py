"""What was answered with 200 stays so: files until they are deleted, deletions, keys and their revocations. What the
bus had not synced when its power was cut may be gone, and nothing else. Nothing is answered with an error of the
server's."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.history import File, History, Key, Read
from tests.checker.violation import Limits, Violation

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
BUSY = frozenset({429, 503, None})  # of a read: nothing is said about the file


def check_files(history: History, limits: Limits) -> Iterator[Violation]:
    for file in history.files:
        changes = (file.sent_s, file.stored_s), (file.delete_sent_s, file.deleted_s)
        if any(history.may_have_lost(*change) for change in changes):
            continue
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
    """When all is well, at each gateway: a stored file is there and in the list, one that was deleted or never stored
    in neither."""
    last = [read for read in file.reads if read.server and read.at_s >= calm_s]
    if file.stored is True and file.delete_sent_s is None:
        for read in last:
            if read.status in BUSY:
                yield Violation("all is well at the end", f"status {read.status}", file)
        for server in (server for server, is_listed in file.listed.items() if not is_listed):
            yield Violation("nothing accepted is gone", f"it is not in the list of {server}", file)
    elif file.deleted is True or file.stored is False:
        for read in last:
            if read.status == OK:
                yield Violation("what is gone stays gone", f"{read.server} has it at the end", file)
        for server in (server for server, is_listed in file.listed.items() if is_listed):
            yield Violation("what is gone stays gone", f"it is in the list of {server} at the end", file)


def check_keys(history: History, limits: Limits) -> Iterator[Violation]:
    """While faults go on a gateway may not have heard of a key yet; once all is well it has."""
    for key in history.keys:
        changes = (key.make_sent_s, key.made_s), (key.revoke_sent_s, key.revoked_s)
        if any(history.may_have_lost(*change) for change in changes):
            continue
        for tried in key.tries:
            if tried.at_s >= history.calm_s + limits.key_settles_s and tried.status is not None:
                yield from _wrong_try(key, tried.status, tried.server)


def _wrong_try(key: Key, status: int, server: str) -> Iterator[Violation]:
    if key.revoked_s is not None and status != UNAUTHORIZED:
        yield Violation("a revoked key is refused", f"status {status} from {server}", key)
    elif key.made_s is not None and key.revoke_sent_s is None and status == UNAUTHORIZED:
        yield Violation("a key is valid", f"401 from {server}", key)


def check_answers(history: History, limits: Limits) -> Iterator[Violation]:
    """A request that cannot be answered now is told so."""
    for error in history.server_errors:
        what = f"{error.status} from {error.server} at {error.at_s:.1f} s: {error.asked}"
        yield Violation("no answer is an error of the server's", what, error)
