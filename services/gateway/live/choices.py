"""The choices of one request: generations of their own over its prompts, and what their client is shown of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.access.rate_limits import Reservation
from services.gateway.live.generation import Generation, Sender
from services.gateway.live.tracker import Tracker
from shared.openai.completions.answers import CompletionUsage
from shared.openai.completions.requests import CompletionRequest
from shared.openai.shown_text import ShownText, ShownToken
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

NUM_AT_ONCE = 16  # choices that are sent, or stopped, before other requests have their turn


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice has more to show. ``finish_reason`` is set with the last."""

    index: int
    text: str
    tokens: list[ShownToken]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Choices:
    """They run from ``submit`` to ``aclose``."""

    tracker: Tracker[Any]
    generations: Sequence[Generation]
    num_per_prompt: int = 1

    @classmethod
    async def submit(
        cls, tracker: Tracker[Any], completion: CompletionRequest, sender: Sender, reservation: Reservation
    ) -> Choices:
        """Raises Refusal, RequestError, NoExecutorError and BusError; then none of them runs."""
        requests = completion.choices()
        n = completion.sampling.n
        shares = reservation.shares(
            [len(each.prompt_token_ids) if index % n else 0 for index, each in enumerate(requests)]
        )
        generations: list[Generation] = []
        choices, num_given = cls(tracker, generations, n), 0
        try:
            for index, (request, share) in enumerate(zip(requests, shares, strict=True)):
                if index and index % NUM_AT_ONCE == 0:
                    await asyncio.sleep(0)
                num_together, num_given = 0 if index else len(requests), index + 1
                generations.append(await tracker.submit(request, sender, share, num_together))
        except BaseException:
            for share in shares[num_given:]:
                share.fail()
            await choices.aclose()
            raise
        return choices

    @property
    def first(self) -> Generation:
        """Whose id is that of the answer."""
        return self.generations[0]

    def usage(self) -> CompletionUsage:
        """When all are finished; a prompt counts once."""
        firsts = self.generations[:: self.num_per_prompt]
        num_output_tokens = sum(len(each.output_token_ids) for each in self.generations)
        num_prompt_tokens = sum(len(each.request.prompt_token_ids) for each in firsts)
        return CompletionUsage.of(num_prompt_tokens, num_output_tokens, sum(each.num_cached_tokens for each in firsts))

    def usage_so_far(self, index: int) -> CompletionUsage:
        """Of one choice, up to the piece that came last."""
        choice = self.generations[index]
        return CompletionUsage.of(len(choice.request.prompt_token_ids), choice.num_read, choice.num_cached_tokens)

    async def aclose(self) -> None:
        """Nobody reads their tokens any more."""
        for index, generation in enumerate(self.generations, 1):
            await self.tracker.close(generation)
            if index % NUM_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def finished(self) -> None:
        """Return at the end of all, or of the first that failed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for generation in self.generations:
                    tasks.create_task(_well_finished(generation))
        except* _FailedError:
            pass

    async def pieces(self, tokenizer: Tokenizer) -> AsyncGenerator[Piece, None]:
        """Of all choices as they come, one for the tokens that came since the choice's piece before, a few at a time
        where these are many."""
        streams = [_pieces_of(generation, index, tokenizer) for index, generation in enumerate(self.generations)]
        if len(streams) == 1:
            async for piece in streams[0]:
                yield piece
            return
        waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in waiting if task in done]:
                    stream, piece = waiting.pop(task), task.result()
                    if piece.finish_reason is None:
                        waiting[asyncio.ensure_future(anext(stream))] = stream
                    yield piece
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


class _FailedError(Exception):
    """A generation ended with an error."""


async def _well_finished(generation: Generation) -> None:
    await generation.finished()
    if generation.finish_reason is FinishReason.ERROR:
        raise _FailedError


async def _pieces_of(generation: Generation, index: int, tokenizer: Tokenizer) -> AsyncGenerator[Piece, None]:
    """One at least, with the last as its end."""
    sampling = generation.request.sampling
    shown = ShownText(tokenizer, sampling, shows_calls=generation.request.tools is not None)
    finish_reason: FinishReason | None = None
    while finish_reason is None:
        num_read, new_tokens = generation.num_read, await generation.next_tokens()
        finish_reason = generation.finish_reason if generation.is_read else None
        logprobs = generation.output_logprobs[num_read : generation.num_read]
        text, tokens = shown.step(new_tokens, logprobs, finish_reason)
        if shown.stopped:
            finish_reason = FinishReason.STOP
        yield Piece(index, text, tokens, finish_reason)
