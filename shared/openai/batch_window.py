"""The completion window of a batch."""

import re

from shared.openai.errors import RequestError

WINDOW_PATTERN = r"^[1-9][0-9]{0,2}[hd]$(?!\n)"
UNIT_S = {"h": 3600, "d": 24 * 3600}
MIN_WINDOW_S, MAX_WINDOW_S = UNIT_S["h"], 30 * UNIT_S["d"]


def window_s(window: str) -> int:
    """The seconds of a completion window. Raises RequestError."""
    seconds = int(window[:-1]) * UNIT_S[window[-1]] if re.match(WINDOW_PATTERN, window) else 0
    if not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        message = "completion_window must be a number of hours or days from 1h to 30d, such as 24h or 7d"
        raise RequestError(message, "completion_window")
    return seconds
