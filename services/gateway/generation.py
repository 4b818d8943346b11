"""One live request: where it runs, and its tokens so far."""

from __future__ import annotations

import asyncio

from shared.openai.requests import CompletionRequest
from shared.protocol.messages import FinishReason, GenerateRequest, TokenOutput
from shared.scheduling.request import Kind


class Generation:
    """Written by the tracker as tokens arrive, read by one HTTP response.

    A slow reader costs no more memory than the tokens themselves, which are kept anyway to resume elsewhere:
    ``next_tokens`` gives all that came since the last call.
    """

    def __init__(
        self, request_id: str, request: CompletionRequest, client_id: str, arrival_s: float, started_s: float
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.client_id = client_id
        self.arrival_s = arrival_s  # unix time
        self.started_s = started_s  # monotonic
        self.output_token_ids: list[int] = []
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self.executor_id: str | None = None  # None while it waits to be resumed
        self.lost_executor_id: str | None = None
        self.lost_s = 0.0  # monotonic
        self.epoch = ""
        self.attempt = 0
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self._num_read = 0
        self._changed = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def wire_id(self) -> str:
        """Its id on the bus. Each attempt has its own, so that late tokens of an earlier one fit nothing."""
        return f"{self.request_id}-{self.attempt}"

    def next_attempt(self, executor_id: str, epoch: str, gateway_id: str) -> GenerateRequest:
        """The message that makes this executor go on from the tokens so far."""
        self.executor_id, self.epoch = executor_id, epoch
        self.attempt += 1
        return GenerateRequest(
            request_id=self.wire_id,
            kind=Kind.ONLINE,
            prompt_token_ids=self.request.prompt_token_ids,
            sampling=self.request.sampling,
            arrival_s=self.arrival_s,
            gateway_id=gateway_id,
            output_token_ids=list(self.output_token_ids),
            client_id=self.client_id,
        )

    def lost_executor(self, now_s: float) -> None:
        """It waits for another executor from here on."""
        self.lost_s = now_s
        self.lost_executor_id, self.executor_id = self.executor_id, None

    def take(self, output: TokenOutput) -> None:
        """One step's gain."""
        self.output_token_ids += output.token_ids
        if self.attempt == 1 and output.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        if output.finish_reason is not None:
            self.end(output.finish_reason, output.error)
        else:
            self._changed.set()

    def end(self, finish_reason: FinishReason, error: str = "") -> None:
        """No tokens come after this; a second call changes nothing."""
        if self.finish_reason is None:
            self.finish_reason, self.error = finish_reason, error
            self._changed.set()
            self._finished.set()

    async def next_tokens(self) -> list[int]:
        """All tokens since the last call; waits for one, or for the end. ``finish_reason`` is set with the last."""
        await self._changed.wait()
        if self.finish_reason is None:
            self._changed.clear()
        tokens = self.output_token_ids[self._num_read :]
        self._num_read = len(self.output_token_ids)
        return tokens

    async def finished(self) -> None:
        """Return when ``finish_reason`` is set."""
        await self._finished.wait()
