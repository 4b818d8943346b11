"""One live request of the service tier ``flex``: an offline request whose client waits."""

from __future__ import annotations

from services.gateway.live.generation import Generation
from shared.protocol.flex import FlexSubmit, flex_batch
from shared.protocol.messages import GenerateRequest, StepTokens, TokenOutput
from shared.scheduling.request import Kind


class FlexGeneration(Generation):
    """Where it runs is not chosen here: it is known from its first token on."""

    place: tuple[str, str] | None = None  # the executor and its epoch, while it runs
    is_lost: bool = False  # it waits to be submitted again
    num_losses: int = 0
    num_executors_lost: int = 0  # while it ran there

    @property
    def wire_id(self) -> str:
        """As ``Generation.wire_id``; the offline-queue schedules it by what is before the dot."""
        return f"{flex_batch(self.sender.client_id)}.{self.request_id}-{self.attempt}"

    def next_submit(self, gateway_id: str) -> FlexSubmit:
        """The message that has it run from the tokens so far; it replaces the attempt before."""
        replaces = self.wire_id if self.attempt else ""
        self.place, self.is_lost = None, False
        self.attempt += 1
        request = GenerateRequest(
            request_id=self.wire_id,
            kind=Kind.OFFLINE,
            prompt_token_ids=self.request.prompt_token_ids,
            sampling=self.request.sampling,
            arrival_s=self.arrival_s,
            gateway_id=gateway_id,
            output_token_ids=list(self.output_token_ids),
            http_request_id=self.sender.http_request_id,
        )
        sender = self.sender
        return FlexSubmit(request, sender.client_id, sender.client_weight, replaces, self.num_executors_lost)

    def lost(self, now_s: float) -> None:
        """Nothing of this attempt counts any more."""
        self.is_lost, self.lost_s = True, now_s
        self.num_losses += 1

    def continues(self, step: StepTokens, output: TokenOutput) -> bool:
        """These tokens come after those that are here: none between was lost, and no executor began anew."""
        place = (step.executor_id, step.epoch)
        return self.place in (None, place) and not self.misses_before(output)
