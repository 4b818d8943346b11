"""A request while it lives on an executor: its tokens, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.replica.prompt_scores import PromptScoring
from shared.scheduling.kv.block_hash import block_hash, hash_chain, scored_chain
from shared.scheduling.limits import NO_PROMPT
from shared.scheduling.request import Kind, Request
from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.tokenizer import Tokenizer


@dataclass(slots=True)
class LiveSequence:
    """``token_ids``: prompt and output; ``request``: what the scheduler knows of it, which is a token ahead of these
    while a step is scheduled over the expected outcome of another."""

    request: Request
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    gateway_id: str
    stop_strings: IncrementalDetokenizer | None  # present where stop strings are to be found
    adjusts_logits: bool = False  # so engines need the tokens so far
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache when it first started
    has_started: bool = False
    num_failures: int = 0  # engine steps in a row that failed with it
    unpublished: list[int] = field(default_factory=list)  # output tokens not yet sent
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of those, where asked for
    http_request_id: str = ""  # for the log
    traceparent: str = ""  # as the request has it
    ended_choices: list[ChoiceOutput] = field(default_factory=list)  # those before the one that is generated
    scoring: PromptScoring | None = None  # where the prompt's tokens are to be scored
    shares_scores: bool = False  # with those whose prompts begin as its own, and with nobody else
    embedding: bytes | None = None  # of its prompt, once that is computed, where it was asked for
    _block_hashes: list[bytes] = field(default_factory=list)

    @classmethod
    def admit(
        cls, request: GenerateRequest, spec: EngineSpec, tokenizer: Tokenizer | None, hashes: Iterable[bytes] = ()
    ) -> LiveSequence:
        """A new sequence; output that an earlier executor generated counts as output. ``hashes``: see
        ``block_hashes``; made where they are missing."""
        prompt, output = request.prompt_token_ids, request.output_token_ids
        stop_strings = _stop_strings(request.sampling, tokenizer)
        if stop_strings is not None and output:
            stop_strings.push(output)
        num_top = request.sampling.prompt_logprobs
        return cls(
            request=scheduled(request, spec.max_model_len),
            token_ids=prompt + output,
            num_prompt_tokens=len(prompt),
            sampling=request.sampling,
            gateway_id=request.gateway_id,
            stop_strings=stop_strings,
            adjusts_logits=request.sampling.adjusts_logits,
            http_request_id=request.http_request_id,
            traceparent=request.traceparent,
            scoring=None if num_top is None else PromptScoring(num_top, len(prompt)),
            shares_scores=num_top is not None,
            _block_hashes=list(hashes),
        )

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def log_ids(self) -> dict[str, str]:
        """What a log line about it names."""
        return {"request_id": self.request_id, "http_request_id": self.http_request_id}

    @property
    def kind(self) -> Kind:
        return self.request.kind

    @property
    def has_more_choices(self) -> bool:
        """To be generated after this one."""
        return self.sampling.n > len(self.ended_choices) + 1

    def why_never_run(self, spec: EngineSpec, trusts_output: bool = False) -> str:
        """Why it is none for this model: there is no prompt to begin from, its adapter is not there, or a token, of its
        own or that its sampling names, is none of the model's. Empty where it is one. ``trusts_output``: an executor
        has it that generated its output, which in a simulation is of no vocabulary."""
        if not self.num_prompt_tokens:
            return NO_PROMPT
        if why := spec.why_without(self.sampling.adapter):
            return why
        token_ids = self.token_ids[: self.num_prompt_tokens] if trusts_output else self.token_ids
        largest = max(self.sampling.largest_token_id, max(token_ids))
        return "" if largest < spec.vocab_size else f"token {largest} is beyond the vocabulary of {spec.vocab_size}"

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def block_hashes(self, block_size: int) -> list[bytes]:
        """Of the full blocks of all tokens so far, or of those whose tokens are scored; not to be changed."""
        hashes, token_ids = self._block_hashes, self.token_ids
        if self.shares_scores:
            return self._scored_hashes(block_size)
        if not hashes:
            self._block_hashes = hashes = hash_chain(token_ids, block_size, parent=self.sampling.kv_scope.root)
        for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
            hashes.append(block_hash(hashes[-1], token_ids[start : start + block_size]))
        return hashes

    def _scored_hashes(self, block_size: int) -> list[bytes]:
        scope = self.sampling.kv_scope
        if not self._block_hashes and scope.num_top is not None:
            prompt = self.token_ids[: self.num_prompt_tokens]
            self._block_hashes = scored_chain(prompt, block_size, scope.num_top, root=scope.root)
        return self._block_hashes

    def scored_ids(self, start: int, end: int) -> list[int]:
        """Of the prompt's tokens that follow those of [start, end): to be scored, where they are not all known."""
        if self.scoring is None or self.scoring.is_complete:
            return []
        return self.token_ids[start + 1 : min(end + 1, self.num_prompt_tokens)]

    def append(self, token_id: int, spec: EngineSpec, logprobs: TokenLogprobs | None = None) -> FinishReason | None:
        """Take one sampled token; why the sequence ends with it, if it does. A stop token is part of the output
        only where it is to be shown."""
        sampling, request = self.sampling, self.request
        ends = not sampling.ignore_eos and token_id in spec.eos_token_ids
        if not ends and sampling.stop_token_ids and token_id in sampling.stop_token_ids:
            if not sampling.includes_stop:
                return FinishReason.STOP
            ends = True
        self.token_ids.append(token_id)
        self.unpublished.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        request.num_tokens += 1
        if ends or (self.stop_strings is not None and self._meets_stop_string(token_id)):
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_tokens >= request.max_total_tokens else None

    def begin_next_choice(self, reason: FinishReason, tokenizer: Tokenizer | None) -> bool:
        """Where the choice that has just ended is not the last one: keep it, and begin anew from the prompt."""
        if not self.has_more_choices:
            return False
        self.ended_choices.append(self.choice(reason))
        self.sampling = msgspec.structs.replace(self.sampling, seed=self.sampling.seed_of_choice(1))
        self.token_ids = self.token_ids[: self.num_prompt_tokens]
        self._block_hashes = []
        self.unpublished, self.logprobs = [], []
        self.request.num_tokens = self.num_prompt_tokens
        self.stop_strings = _stop_strings(self.sampling, tokenizer)
        return True

    def bring_scores(self, packed: bytes) -> None:
        """They are known from another executor. Its blocks are as any other's."""
        assert self.sampling.prompt_logprobs is not None
        self.scoring = PromptScoring(self.sampling.prompt_logprobs, self.num_prompt_tokens, packed)
        self.shares_scores = False

    @property
    def prompt_scores(self) -> bytes | None:
        """Where they were asked for, and are all known."""
        return None if self.scoring is None else self.scoring.whole

    def take_prompt_scores(self) -> bytes | None:
        """``prompt_scores``, where nobody was told of them: for who waits for tokens."""
        return None if self.scoring is None else self.scoring.take()

    def choice(self, reason: FinishReason) -> ChoiceOutput:
        """The one that is generated, as it ends."""
        logprobs = None if self.sampling.logprobs is None else self.logprobs
        return ChoiceOutput(self.output_token_ids, reason, logprobs)

    def take_unpublished(self) -> tuple[list[int], list[TokenLogprobs] | None]:
        """Output tokens that were not sent yet, and where asked for their logprobs."""
        token_ids, self.unpublished = self.unpublished, []
        if self.sampling.logprobs is None:
            return token_ids, None
        logprobs, self.logprobs = self.logprobs, []
        return token_ids, logprobs

    def finished_before(self, spec: EngineSpec) -> FinishReason | None:
        """Why a resumed sequence has nothing left to generate, if so."""
        if self.stop_strings is not None and self.stop_strings.stopped:
            return FinishReason.STOP
        if self.sampling.max_tokens == 0:
            return None  # its prompt is to be computed
        if len(self.token_ids) > self.num_prompt_tokens and self._has_ended(spec):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.request.num_tokens >= self.request.max_total_tokens else None

    def _has_ended(self, spec: EngineSpec) -> bool:
        """By its last token."""
        sampling, last = self.sampling, self.token_ids[-1]
        if sampling.includes_stop and last in sampling.stop_token_ids:
            return True
        return not sampling.ignore_eos and last in spec.eos_token_ids

    def _meets_stop_string(self, token_id: int) -> bool:
        if self.stop_strings is None:
            return False
        self.stop_strings.push([token_id])
        return self.stop_strings.stopped


def scheduled(request: GenerateRequest, max_model_len: int) -> Request:
    """What a scheduler knows of it, on an executor with this context (tokens)."""
    num_prompt_tokens = len(request.prompt_token_ids)
    return Request(
        request.request_id,
        request.kind,
        num_prompt_tokens + len(request.output_token_ids),
        min(num_prompt_tokens + request.sampling.max_tokens, max_model_len),
        client_id=request.client_id,
        arrival_s=request.arrival_s,
        client_weight=request.client_weight,
        num_resumed_tokens=len(request.output_token_ids) if request.is_resumed else None,
    )


def _stop_strings(sampling: SamplingParams, tokenizer: Tokenizer | None) -> IncrementalDetokenizer | None:
    if tokenizer is None or not sampling.stop:
        return None
    return tokenizer.detokenizer(
        sampling.stop, shows_special=sampling.shows_special, min_tokens=sampling.min_tokens, follows=sampling.follows
    )
