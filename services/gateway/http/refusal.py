"""A request that is valid and not served: now, or for this client."""

import math
from collections.abc import Mapping

from shared.errors import SlackwaterError


class Refusal(SlackwaterError):
    """Answered with 429 or 503 and Retry-After. ``reason`` names it among the metrics; ``type`` and ``code`` are as
    OpenAI's."""

    def __init__(
        self,
        reason: str,
        message: str,
        status: int,
        type: str,
        code: str,
        retry_after_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.headers = {**(headers or {}), "Retry-After": str(max(1, math.ceil(retry_after_s)))}
