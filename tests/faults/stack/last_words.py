"""What a process has said of its beginning and its end: events, one a line, as ``run_service`` writes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

STARTED, AT_WORK, STOPPED_BY = "started", "at work", "stopped by an error"
BUS_AWAY = frozenset({"BusError", "NoResponderError", "NobodyListensError"})
REPLACED = "LeaseLostError"
# Who is at work for so long has found on the bus all that it needs to begin, or would have ended: what it asks for is
# awaited for ten seconds each, and so is what is to be let go at the end.
SETTLED_S = 60.0


def said(log: Path, from_byte: int, event: str) -> bool:
    """Whether there is such a line from that byte on, or in all of a log that has been cut since."""
    if not log.exists():
        return False
    with log.open("rb") as file:
        file.seek(from_byte if from_byte <= file.seek(0, 2) else 0)
        return any(_event(line) == event for line in file)


def tracebacks(log: Path, from_byte: int) -> list[str]:
    """Of what was said from that byte on, in words."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(from_byte if from_byte <= file.seek(0, 2) else 0)
        lines = file.read().decode(errors="replace").splitlines()
    logged = [event for event in map(_parsed, lines) if "exception" in event]
    told = [f"{event.get('event')}: {str(event['exception']).strip().splitlines()[-1]}" for event in logged]
    return told + [line for line in lines if line.startswith("Traceback")]


def named_error(words: str) -> str:
    """The type of the named error by which it ended; empty where it did not say one, or has a traceback as well."""
    found = ""
    for event in map(_parsed, words.splitlines()):
        if event.get("event") == STOPPED_BY:
            found = str(event.get("error", "")).partition(":")[0]
        elif "exception" in event:
            return ""
    return "" if "Traceback" in words else found


def may_end(error: str, may_be_replaced: bool, is_at_it: bool) -> bool:
    """Whether a service that was kept from the bus may end by that error: one that was replaced has to, as an
    offline-queue may be; who begins or ends needs a bus, but nobody does who is at it."""
    return (may_be_replaced and error == REPLACED) or (error in BUS_AWAY and not is_at_it)


def is_in_order(status: int | None, words: str) -> bool:
    """Of an end that it was told to: a process that does not know SIGTERM yet ends by it. ``status``: None where it is
    not known."""
    has_failed = "Traceback" in words or STOPPED_BY in words
    return status in (0, -signal.SIGTERM) or (status is None and not has_failed)


def _event(line: bytes) -> str:
    return str(_parsed(line.decode(errors="replace")).get("event", ""))


def _parsed(line: str) -> dict[str, Any]:
    """Empty where the line is none of JSON."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
