"""When an online request's next tokens are due: rules that differ from the second token on."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar

from shared.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class TokenSlo:
    """Counted from the last token (BROS section 4.1). The first token is due ``ttft_ms`` after the request came to this
    executor. Later ones come in groups: each group of ``group_tokens`` is due ``tpot_ms`` for each of its tokens after
    the group before was complete, so that within a group a late token can be made up for. Raises ValueError for a bound
    that is not positive."""

    ttft_ms: float = 400.0  # both as in BROS section 7.1
    tpot_ms: float = 200.0
    group_tokens: int = 1
    counts_from_token: ClassVar[bool] = True  # else from the deadline before

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"{each.name} must be above 0, not {getattr(self, each.name)}")

    def arrive(self, request: Request, now_ms: float, arrival_ms: float) -> None:
        """It waits for a first token: of its answer, or, where another executor gave it some, from here.
        ``arrival_ms``: when it came to the gateway, on the clock of ``now_ms``."""
        request.deadline_ms = now_ms + self.ttft_ms
        request.num_group_tokens_left = 1

    def advance(self, request: Request, now_ms: float) -> None:
        """It got a token."""
        self.advance_all((request,), now_ms)

    def advance_all(self, requests: Iterable[Request], now_ms: float) -> None:
        """They got a token each."""
        from_token, group_tokens, group_ms = self.counts_from_token, self.group_tokens, self.group_tokens * self.tpot_ms
        for request in requests:
            request.num_group_tokens_left -= 1
            if request.num_group_tokens_left == 0:
                start_ms = now_ms if from_token or request.awaits_first_token else request.deadline_ms
                request.deadline_ms = start_ms + group_ms
                request.num_group_tokens_left = group_tokens
                request.awaits_first_token = False


@dataclass(frozen=True, slots=True)
class ArrivalTokenSlo(TokenSlo):
    """Counted from the arrival (Echo section 5.1): token i, the first being 0, is due ``ttft_ms`` + i ``tpot_ms`` after
    the request came to the gateway. Time that earlier tokens left over is there for later ones, and what they were late
    has to be made up for; so it is for a request that comes with tokens of another executor. A group is due when its
    last token is."""

    counts_from_token: ClassVar[bool] = False

    def arrive(self, request: Request, now_ms: float, arrival_ms: float) -> None:
        """It waits for the group of the first token that it lacks."""
        num_tokens = request.num_resumed_tokens or 0
        last = -(-num_tokens // self.group_tokens) * self.group_tokens  # of the group that token num_tokens is in
        request.deadline_ms = arrival_ms + self.ttft_ms + last * self.tpot_ms
        request.num_group_tokens_left = last + 1 - num_tokens


@dataclass(frozen=True, slots=True)
class FirstTokenSlo(ArrivalTokenSlo):
    """Counted from the first token: that is due ``ttft_ms`` after the arrival, and token i i ``tpot_ms`` after it came.
    So ``tpot_ms`` bounds the mean time between tokens as a client measures it, which ``ArrivalTokenSlo`` exceeds by
    what a first token was early, over the number of tokens. A request that comes with tokens of another executor goes
    on as from its arrival."""

    def arrive(self, request: Request, now_ms: float, arrival_ms: float) -> None:
        ArrivalTokenSlo.arrive(self, request, now_ms, arrival_ms)
        request.awaits_first_token = not request.num_resumed_tokens


DEADLINE_RULES: dict[str, type[TokenSlo]] = {
    "last-token": TokenSlo,
    "arrival": ArrivalTokenSlo,
    "first-token": FirstTokenSlo,
}
