"""One live request: where it runs, and its tokens so far. Online and flex requests differ in who chooses the place."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from services.gateway.access.rate_limits import UNLIMITED, Share
from shared.openai.completions.requests import CompletionRequest
from shared.process.tracing import NO_SPAN, Span
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs, TokenOutput
from shared.scheduling.placement.routing import Route
from shared.scheduling.request import Kind

NUMBER_BYTES = 4
MOST_AT_ONCE = 128  # tokens that a reader gets: with log probabilities an event of them takes some ms
SUSPECT_CRASHES = 2
TRIAL_TOKENS = 8  # tokens that were on their way when the executor died are generated again first


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose request it is, for fairness between clients and for the log: what goes with it to its executor."""

    client_id: str
    client_weight: float = 1.0
    http_request_id: str = ""
    key_name: str = ""  # of a known key; it stays here
    span: Span = NO_SPAN  # of the HTTP request; it stays here, too


@dataclass(eq=False)
class Generation:
    """Written by the tracker as tokens arrive, read by one HTTP response. A slow reader costs no more memory than the
    tokens, which are kept anyway to resume elsewhere: ``next_tokens`` gives what came since the last call."""

    kind: ClassVar[Kind]

    request_id: str
    request: CompletionRequest
    sender: Sender
    arrival_s: float  # unix time
    started_s: float  # monotonic
    share: Share = UNLIMITED  # of what its request may use
    num_together: int = 1  # choices of its request, told with the first: 0 for the others
    output_token_ids: list[int] = field(default_factory=list)
    output_logprobs: list[TokenLogprobs] = field(default_factory=list)  # one for each token, where they are asked for
    prompt_scores: bytes | None = None  # where they are asked for, from the first token on
    embedding: bytes | None = None  # where it is asked for, at the end
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str = ""
    span: Span = NO_SPAN  # from its arrival to its end
    place: tuple[str, str] | None = None  # the executor and its epoch, where they are known
    left: dict[tuple[str, str], None] = field(default_factory=dict)  # places that it has moved from, of this attempt
    is_lost: bool = False  # it waits to be sent again; the place is where it was
    lost_s: float = 0.0  # monotonic
    num_losses: int = 0  # in a row without a token between them, where its executor did not die
    crashes: dict[tuple[str, str], None] = field(default_factory=dict)  # places that died while it was there
    num_missed: int = 0  # comparisons in a row in which its executor did not have it
    attempt: int = 0
    first_token_s: float | None = None  # monotonic
    last_token_s: float | None = None
    num_read: int = 0  # tokens that ``next_tokens`` has given
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _finished: asyncio.Event = field(default_factory=asyncio.Event)
    _trial_end: float = math.inf  # output tokens
    _trial_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_read(self) -> bool:
        """It has ended, and ``next_tokens`` has given all of it."""
        return self.finish_reason is not None and self.num_read == len(self.output_token_ids)

    @property
    def is_suspect(self) -> bool:
        """It was there too often when an executor died."""
        return self.kind is Kind.ONLINE and len(self.crashes) >= SUSPECT_CRASHES

    @property
    def executor_id(self) -> str | None:
        """None where it is not known, and while it waits to be resumed."""
        return None if self.place is None or self.is_lost else self.place[0]

    @property
    def wire_id(self) -> str:
        """Its id on the bus. Each attempt has its own, so that late tokens of an earlier one fit nothing."""
        return f"{self.request_id}-{self.attempt}"

    @property
    def log_ids(self) -> dict[str, str | None]:
        """What a log line about it names."""
        return {
            "request_id": self.wire_id,
            "http_request_id": self.sender.http_request_id,
            "executor_id": self.executor_id,
        }

    @property
    def sampling(self) -> SamplingParams:
        """Of what is still to be had."""
        sampling = self.request.sampling
        if self.prompt_scores is None:
            return sampling
        return msgspec.structs.replace(sampling, prompt_logprobs=None)

    @property
    def output(self) -> ChoiceOutput:
        """All of it, at its end."""
        assert self.finish_reason is not None
        return ChoiceOutput(self.output_token_ids, self.finish_reason, self.output_logprobs)

    @property
    def num_values(self) -> int:
        """About how many tokens, log probabilities and other numbers its whole answer is made of."""
        sampling, num_tokens = self.request.sampling, len(self.output_token_ids)
        if sampling.echo:
            num_tokens += len(self.request.prompt_token_ids)
        of_token = 1 if sampling.logprobs is None else 2 + sampling.logprobs
        num_bytes = len(self.prompt_scores or b"") + len(self.embedding or b"")
        return num_tokens * of_token + num_bytes // NUMBER_BYTES

    def next_attempt(self, gateway_id: str) -> GenerateRequest:
        """The message that makes an executor go on from the tokens so far."""
        self.place, self.is_lost, self.num_missed, self.left = None, False, 0, {}
        self.attempt += 1
        client_id = self.sender.client_id if self.kind is Kind.ONLINE else ""
        return GenerateRequest(
            request_id=self.wire_id,
            kind=self.kind,
            prompt_token_ids=self.request.prompt_token_ids,
            sampling=self.sampling,
            arrival_s=self.arrival_s,
            gateway_id=gateway_id,
            output_token_ids=list(self.output_token_ids),
            is_resumed=self.attempt > 1,
            client_id=client_id,
            client_weight=self.sender.client_weight if client_id else 1.0,
            http_request_id=self.sender.http_request_id,
            traceparent=self.span.traceparent,
        )

    def lost(self, now_s: float) -> None:
        """Nothing of this attempt counts any more; it waits for another from here on."""
        self.is_lost, self.lost_s = True, now_s
        self._trial_over.set()

    def begin_trial(self, now_s: float) -> None:
        """A suspect is to be sent again, by itself. It is none any more once it has gained TRIAL_TOKENS."""
        self.lost_s = now_s  # its turn was waited for, not a taker
        self._trial_end = len(self.output_token_ids) + TRIAL_TOKENS
        self._trial_over.clear()

    async def trial_over(self) -> None:
        """Return when it has got on, is lost again, or has ended."""
        await self._trial_over.wait()
        self._trial_end = math.inf

    def ignores(self, place: tuple[str, str], output: TokenOutput) -> bool:
        """Whether this is nothing to it: it is lost, or somebody stops who does not have it any more."""
        is_elsewhere = self.place not in (None, place)
        return self.is_lost or (is_elsewhere and output.finish_reason is FinishReason.ABORT)

    def continues(self, place: tuple[str, str], output: TokenOutput) -> bool:
        """Whether these tokens are the next: none was lost while the bus was away, and no executor began anew. Another
        executor has them where it has taken the request over, or has given it away: that may be heard of later, or
        was earlier."""
        if self.place is not None and place != self.place and place[0] == self.place[0]:
            return False
        return output.num_output_tokens in (None, len(self.output_token_ids) + len(output.token_ids))

    def is_taken_by(self, place: tuple[str, str]) -> bool:
        """Tokens from there that are the next are news of a move: it is known to be elsewhere, and was never there."""
        return self.place not in (None, place) and place not in self.left

    def has_heard_of(self, giver: tuple[str, str], taker: tuple[str, str]) -> bool:
        """Of this move, by the taker's tokens, which were here before the news; it may have moved on since."""
        return self.place == taker or (taker in self.left and self.place != giver)

    def move(self, giver: tuple[str, str], place: tuple[str, str]) -> None:
        """Another executor has it from here on, with all that it has generated."""
        self.left[giver] = None
        self.left.pop(place, None)
        self.place, self.num_missed = place, 0

    def had_tokens(self, now_s: float) -> None:
        """A step's tokens of it arrived."""
        self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
        self.last_token_s = now_s

    def take(self, output: TokenOutput) -> None:
        """One step's gain."""
        self.output_token_ids += output.token_ids
        self.output_logprobs += output.logprobs or ()
        if output.prompt_scores is not None:
            self.prompt_scores = output.prompt_scores
        if output.embedding is not None:
            self.embedding = output.embedding
        if self.attempt == 1 and output.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        if output.token_ids:
            self.num_losses = 0
        if len(self.output_token_ids) >= self._trial_end:
            self.crashes.clear()
            self._trial_over.set()
        if output.finish_reason is not None:
            self.end(output.finish_reason, output.error)
        else:
            self._changed.set()

    def end(self, finish_reason: FinishReason, error: str = "") -> None:
        """No tokens come after this; a second call changes nothing."""
        if self.finish_reason is None:
            self.finish_reason, self.error = finish_reason, error
            if finish_reason is FinishReason.ERROR:
                self.share.fail()
            else:
                num_prompt, num_output = len(self.request.prompt_token_ids), len(self.output_token_ids)
                self.share.settle(num_prompt, num_output, self.num_cached_tokens)
            self._changed.set()
            self._trial_over.set()
            self._finished.set()

    async def next_tokens(self) -> list[int]:
        """The tokens since the last call, the first MOST_AT_ONCE; waits for one, or for the end. ``is_read`` tells the
        last ones."""
        if self.num_read < len(self.output_token_ids):
            await asyncio.sleep(0)  # other readers have their turn
        await self._changed.wait()
        tokens = self.output_token_ids[self.num_read : self.num_read + MOST_AT_ONCE]
        self.num_read += len(tokens)
        if self.finish_reason is None and self.num_read == len(self.output_token_ids):
            self._changed.clear()
        return tokens

    async def finished(self) -> None:
        """Return when ``finish_reason`` is set."""
        await self._finished.wait()


class OnlineGeneration(Generation):
    """The router chooses where it runs, and is told through the route what it still costs there."""

    kind = Kind.ONLINE
    route: Route | None = None  # None while it waits to be resumed

    def lost(self, now_s: float) -> None:
        super().lost(now_s)
        self._leave_route()

    def ignores(self, place: tuple[str, str], output: TokenOutput) -> bool:
        """Only this incarnation of the executor has it, and who gives or takes it what comes next."""
        is_next = output.finish_reason is not FinishReason.ERROR and self.continues(place, output)
        return super().ignores(place, output) or not (place == self.place or is_next)

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
