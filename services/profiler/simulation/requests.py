"""The requests of a simulation: online ones as they arrive, offline ones as they wait to enter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import PromptMaker
from loadgen.workload.scaling import fit_context
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.encoding import PromptEncoder
from shared.offline_queue.offline_pool import Packed
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.block_hash import PLAIN, KVScope
from shared.scheduling.orders.offline.registry import DEFAULT_BLOCK_SIZE
from shared.scheduling.packed_prompt import TOKEN_BYTES, pack_tokens, unpack_tokens
from shared.scheduling.request import Kind, Request

ONLINE_SEEDS = 1 << 23  # apart from those of offline requests
FIRST_COPY_ID = 1 << 26  # beyond every token, in prompts and in outputs

Waiting = tuple[Request, Packed]  # as ``OfflinePool.keep`` takes it


@dataclass(slots=True)
class Arrivals:
    """A trace's requests, each made when it is due. ``client_ids``: whom each is from; None is one client."""

    requests: Sequence[TraceRequest]
    prompts: PromptMaker[int]
    client_ids: Sequence[str] | None = None
    _num_taken: int = field(init=False, default=0)

    def __len__(self) -> int:
        """All of them."""
        return len(self.requests)

    @property
    def next_s(self) -> float | None:
        """When the next is due; None where none is left."""
        return self.requests[self._num_taken].arrival_s if self._num_taken < len(self.requests) else None

    def take(self) -> GenerateRequest:
        """The next. Raises IndexError where none is left."""
        index = self._num_taken
        request = self.requests[index]
        self._num_taken += 1
        max_tokens, seed = max(1, request.num_output_tokens), ONLINE_SEEDS + index
        sampling = SamplingParams(max_tokens, temperature=0.0, seed=seed, ignore_eos=True)
        client_id = self.client_ids[index] if self.client_ids else ""
        token_ids = _token_ids(self.prompts, request, index)
        return GenerateRequest(
            f"online-{index}", Kind.ONLINE, token_ids, sampling, request.arrival_s, client_id=client_id
        )


@dataclass(frozen=True, slots=True)
class BacklogPrompt:
    """``packed``: the tokens; of a ``length`` that shares nothing those of its first block, which no other prompt
    begins with. ``asked_tokens``: what is known of ``max_tokens`` beforehand; None is all."""

    num_tokens: int
    max_tokens: int
    packed: bytes
    length: TraceRequest | None = None
    asked_tokens: int | None = None


class PreparedBacklog:
    """Prompts read and encoded once, for any number of runs. An index beyond them is that of a copy: all prompts once
    more, of the same lengths, sharing among each other what the first ones do, and nothing with those."""

    def __init__(
        self, prompts: Sequence[OfflinePrompt], encoder: PromptEncoder, maker: PromptMaker[int], max_context: int
    ) -> None:
        """``maker``: makes prompts of lengths; texts too long for ``max_context`` tokens are cut."""
        self._encoder, self._maker = encoder, maker
        self.prompts = [self._prepared(prompt, index, max_context) for index, prompt in enumerate(prompts)]

    def __len__(self) -> int:
        return len(self.prompts)

    def prompt(self, index: int) -> BacklogPrompt:
        """The prompt, or its copy."""
        copy, place = divmod(index, len(self.prompts))
        prompt = self.prompts[place]
        if copy == 0:
            return prompt
        if prompt.length is not None:
            return replace(prompt, packed=self._first_block(prompt.num_tokens, index))
        return replace(prompt, packed=pack_tokens([FIRST_COPY_ID + copy]) + prompt.packed[TOKEN_BYTES:])

    def token_ids(self, index: int) -> list[int]:
        """The whole prompt."""
        prompt = self.prompt(index)
        return _token_ids(self._maker, prompt.length, index) if prompt.length else unpack_tokens(prompt.packed)

    def _prepared(self, prompt: OfflinePrompt, index: int, max_context: int) -> BacklogPrompt:
        made = self._fitted(prompt, index, max_context)
        if prompt.asked_tokens is None:
            return made
        return replace(made, asked_tokens=min(max(made.max_tokens, prompt.asked_tokens), max_context - made.num_tokens))

    def _fitted(self, prompt: OfflinePrompt, index: int, max_context: int) -> BacklogPrompt:
        token_ids = self._encoder.token_ids(prompt)
        if token_ids is None and prompt.block_ids:
            token_ids = _token_ids(self._maker, prompt.shape, index)
        if token_ids is not None:
            num_tokens, max_tokens = fit_context(len(token_ids) or 1, prompt.max_tokens, max_context)
            return BacklogPrompt(num_tokens, max_tokens, pack_tokens(token_ids[:num_tokens]))
        num_tokens, max_tokens = fit_context(prompt.num_prompt_tokens or 1, prompt.max_tokens, max_context)
        packed = self._first_block(num_tokens, index)
        return BacklogPrompt(num_tokens, max_tokens, packed, TraceRequest(0.0, num_tokens, max_tokens))

    def _first_block(self, num_tokens: int, index: int) -> bytes:
        shape = TraceRequest(0.0, min(num_tokens, DEFAULT_BLOCK_SIZE), 1)
        return pack_tokens(_token_ids(self._maker, shape, index))


@dataclass(slots=True)
class Backlog:
    """One run's requests, as they come into the pool. The prompt of a length is made when its request enters an
    executor: it shares no block with another, and so the order gets to know its first block only. ``wave_size``: so
    many are submitted at a time, the next when all of them have ended (BROS section 7.1); None submits all at once.
    ``is_endless``: copies of all of them follow, each set when half of the one before has ended, so that there is
    always work. ``per_s``: instead, one comes after the other at this rate, copies where they are too few (OOCO section
    5.2)."""

    prepared: PreparedBacklog
    wave_size: int | None = None
    is_endless: bool = False
    per_s: float | None = None
    _num_submitted: int = field(init=False, default=0)
    _num_open: int = field(init=False, default=0)  # submitted, and not ended

    def __len__(self) -> int:
        """All of them; of an endless one, and of one that comes at a rate, those that were submitted."""
        return self._num_submitted if self.is_endless or self.per_s else len(self.prepared)

    @property
    def next_s(self) -> float | None:
        """When the next comes of itself; None where none does."""
        return None if self.per_s is None else self._num_submitted / self.per_s

    def begin(self) -> list[Waiting]:
        """What waits from the start."""
        return self._submit(0.0) if self.per_s is None else self.take(0.0)

    def end(self, now_s: float) -> list[Waiting]:
        """One has ended; what comes then."""
        self._num_open -= 1
        if self.per_s is not None:
            return []
        has_enough = self._num_open > len(self.prepared) // 2 if self.is_endless else self._num_open > 0
        return [] if has_enough else self._submit(now_s)

    def take(self, now_s: float) -> list[Waiting]:
        """Those that come of themselves, whose time it is."""
        num_due = 0 if self.per_s is None else math.floor(now_s * self.per_s + 1e-9) + 1
        indices = range(self._num_submitted, num_due)
        self._num_submitted += len(indices)
        self._num_open += len(indices)
        return [self._waiting(index, now_s) for index in indices]

    def _submit(self, now_s: float) -> list[Waiting]:
        """The next wave, or set of copies."""
        num_known = self._num_submitted + len(self.prepared) if self.is_endless else len(self.prepared)
        wave = range(num_known)[self._num_submitted :][: self.wave_size]
        self._num_submitted += len(wave)
        self._num_open += len(wave)
        return [self._waiting(index, now_s) for index in wave]

    def _waiting(self, index: int, now_s: float) -> Waiting:
        prompt, request_id = self.prepared.prompt(index), f"offline-{index}"
        is_known = prompt.asked_tokens is None
        total = prompt.num_tokens + (prompt.asked_tokens or prompt.max_tokens)
        request = Request(request_id, Kind.OFFLINE, prompt.num_tokens, total, arrival_s=now_s, ends_at_limit=is_known)
        return request, _PackedPrompt(self.prepared, index, now_s)


@dataclass(frozen=True, slots=True)
class _PackedPrompt:
    """What the pool keeps of a request that waits."""

    prepared: PreparedBacklog
    index: int
    arrival_s: float
    scope: ClassVar[KVScope] = PLAIN

    @property
    def prompt(self) -> bytes:
        return self.prepared.prompt(self.index).packed

    @property
    def num_bytes(self) -> int:
        return TOKEN_BYTES * self.prepared.prompt(self.index).num_tokens

    def unpack(self) -> GenerateRequest:
        index, token_ids = self.index, self.prepared.token_ids(self.index)
        max_tokens = self.prepared.prompt(index).max_tokens
        sampling = SamplingParams(max_tokens, temperature=0.0, seed=index, ignore_eos=True)
        return GenerateRequest(f"offline-{index}", Kind.OFFLINE, token_ids, sampling, self.arrival_s)


def _token_ids(maker: PromptMaker[int], request: TraceRequest, index: int) -> list[int]:
    made = maker.prompt(request, index)
    assert isinstance(made, list)
    return made
