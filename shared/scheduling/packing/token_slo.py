"""When an online request's next tokens are due."""

from dataclasses import dataclass

from shared.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class TokenSlo:
    """The first token is due ``ttft_ms`` after arrival. Later ones come in groups (BROS section 4.1): each group of
    ``group_tokens`` is due ``tpot_ms`` for each of its tokens after the group before was complete, so that within a
    group a late token can be made up for. Raises ValueError for a bound that is not positive."""

    ttft_ms: float = 400.0  # both as in BROS section 7.1
    tpot_ms: float = 200.0
    group_tokens: int = 1

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")

    def arrive(self, request: Request, now_ms: float) -> None:
        """It waits for a first token: of its answer, or, where another executor gave it some, from here."""
        request.deadline_ms = now_ms + self.ttft_ms
        request.num_group_tokens_left = 1

    def advance(self, request: Request, now_ms: float) -> None:
        """It got a token."""
        request.num_group_tokens_left -= 1
        if request.num_group_tokens_left == 0:
            request.num_group_tokens_left = self.group_tokens
            request.deadline_ms = now_ms + self.group_tokens * self.tpot_ms
