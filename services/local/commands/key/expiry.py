"""When a key ends, as people write it."""

import re
from datetime import UTC, datetime

import typer

UNITS_S = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}

_DURATION = re.compile(r"(\d+)([mhdw])")


def parse_expiry(text: str, now_s: float) -> int:
    """Unix seconds of "30d" from now on, of a date, or of a time in ISO 8601; UTC, unless the time says otherwise.
    Raises typer.BadParameter."""
    if duration := _DURATION.fullmatch(text.strip()):
        expires_at = int(now_s) + int(duration[1]) * UNITS_S[duration[2]]
    else:
        expires_at = _parse_time(text.strip())
    if expires_at <= now_s:
        raise typer.BadParameter(f"{text!r} is over")
    try:
        datetime.fromtimestamp(expires_at, UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is too far away; leave it out for a key without an end") from error
    return expires_at


def _parse_time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 30d, 12h, 2027-01-31 or 2027-01-31T18:00") from error
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
