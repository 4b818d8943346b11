"""One live request of the service tier ``flex``: an offline request whose client waits."""

from __future__ import annotations

from services.gateway.live.generation import Generation
from shared.protocol.flex import FlexSubmit, flex_batch
from shared.scheduling.request import Kind


class FlexGeneration(Generation):
    """Where it runs is not chosen here: it is known from its first token on."""

    kind = Kind.OFFLINE

    @property
    def wire_id(self) -> str:
        """As ``Generation.wire_id``; the offline-queue schedules it by what is before the dot."""
        return f"{flex_batch(self.sender.client_id)}.{super().wire_id}"

    def next_submit(self, gateway_id: str) -> FlexSubmit:
        """The message that has it run from the tokens so far; it replaces the attempt before."""
        replaces = self.wire_id if self.attempt else ""
        request, sender = self.next_attempt(gateway_id), self.sender
        return FlexSubmit(request, sender.client_id, sender.client_weight, replaces, self.num_executors_lost)
