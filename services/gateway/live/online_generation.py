"""One live online request, and its way to an executor."""

from services.gateway.live.generation import Generation
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import TokenOutput
from shared.scheduling.placement.routing import Route
from shared.scheduling.request import Kind


class OnlineGeneration(Generation):
    """The router chooses where it runs, and is told through the route what it still costs there."""

    kind = Kind.ONLINE
    route: Route | None = None  # None while it waits to be resumed
    first_token_s: float | None = None  # monotonic

    def next_attempt_at(self, route: Route, gateway_id: str) -> GenerateRequest:
        """The message that makes this executor go on from the tokens so far."""
        message = super().next_attempt(gateway_id)
        self.route, self.place = route, (route.target.executor_id, route.target.epoch)
        return message

    def lost(self, now_s: float) -> None:
        super().lost(now_s)
        self._leave_route()

    def ignores(self, place: tuple[str, str]) -> bool:
        """Only this incarnation of the executor has it."""
        return super().ignores(place) or place != self.place

    def take(self, output: TokenOutput) -> None:
        if self.route is not None and output.token_ids:
            self.route.answered()
        super().take(output)

    def end(self, finish_reason: FinishReason, error: str = "") -> None:
        super().end(finish_reason, error)
        self._leave_route()

    def _leave_route(self) -> None:
        if self.route is not None:
            self.route.end()
            self.route = None
