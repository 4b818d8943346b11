"""Runs requests to their end on an engine the hard way: random mixes, random chunks, scattered and shared blocks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from services.executor.engine import Engine, Sequence, StepBatch
from shared.protocol.messages import SamplingParams


@dataclass
class Request:
    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def is_finished(self, eos_token_ids: tuple[int, ...]) -> bool:
        return len(self.output) == self.sampling.max_tokens or self.output[-1:] in [[eos] for eos in eos_token_ids]


class EngineDriver:
    """Owns the blocks of an engine: allocates at random, shares full blocks of equal prefixes, drops whole requests."""

    def __init__(self, engine: Engine, seed: int, max_tokens: int = 256, drop: float = 0.0) -> None:
        """A step runs at most ``max_tokens``; before each, one running request is dropped with probability ``drop``."""
        self._engine = engine
        self._rng = random.Random(seed)
        self._max_tokens = max_tokens
        self._drop = drop
        self._users: Counter[int] = Counter()
        self._cached: dict[tuple[int, ...], int] = {}  # whole prefix up to a full block's end -> the block
        self.shared_blocks = 0
        self.drops = 0
        self.steps = 0

    def run(self, requests: list[Request]) -> dict[str, list[int]]:
        """Outputs by request id, EOS included."""
        eos = self._engine.spec.eos_token_ids
        while running := [request for request in requests if not request.is_finished(eos)]:
            self._maybe_drop(running)
            scheduled = self._schedule(running)
            result = self._engine.execute(StepBatch(self.steps, [sequence for _, sequence in scheduled]))
            self.steps += 1
            for request, sequence in scheduled:
                request.num_computed += len(sequence.token_ids)
                self._publish_full_blocks(request)
                if sequence.needs_sample:
                    request.output.append(result.sampled[request.request_id])
                if request.is_finished(eos):
                    self._release(request)
        return {request.request_id: request.output for request in requests}

    def _schedule(self, running: list[Request]) -> list[tuple[Request, Sequence]]:
        scheduled, budget = [], self._max_tokens
        for request in self._rng.sample(running, self._rng.randint(1, len(running))):
            if request.num_computed == 0:
                self._take_shared_prefix(request)
            tokens = request.tokens
            remaining = len(tokens) - request.num_computed
            count = min(remaining, budget, self._rng.choice([1, 5, 16, 37, 64, remaining]))
            if count == 0:
                continue
            budget -= count
            end = request.num_computed + count
            self._grow(request, end)
            new = tokens[request.num_computed : end]
            scheduled.append(
                (
                    request,
                    Sequence(
                        request.request_id,
                        new,
                        request.num_computed,
                        list(request.block_table),
                        request.sampling,
                        needs_sample=end == len(tokens),
                    ),
                )
            )
        return scheduled

    def _take_shared_prefix(self, request: Request) -> None:
        size = self._engine.spec.block_size
        tokens = request.tokens
        self._release(request)
        for end in range(size, len(tokens), size):  # the last token is always computed: its logits are needed
            block = self._cached.get(tuple(tokens[:end]))
            if block is None:
                return
            request.block_table.append(block)
            request.num_computed = end
            self._users[block] += 1
            self.shared_blocks += 1

    def _grow(self, request: Request, num_tokens: int) -> None:
        while len(request.block_table) * self._engine.spec.block_size < num_tokens:
            free = [block for block in range(self._engine.spec.num_blocks) if not self._users[block]]
            block = self._rng.choice(free)
            self._cached = {prefix: cached for prefix, cached in self._cached.items() if cached != block}
            self._users[block] += 1
            request.block_table.append(block)

    def _publish_full_blocks(self, request: Request) -> None:
        size = self._engine.spec.block_size
        for index in range(request.num_computed // size):
            self._cached.setdefault(tuple(request.tokens[: (index + 1) * size]), request.block_table[index])

    def _maybe_drop(self, running: list[Request]) -> None:
        if self._rng.random() < self._drop:
            victim = self._rng.choice(running)
            self.drops += victim.num_computed > 0
            self._release(victim)

    def _release(self, request: Request) -> None:
        self._users.subtract(request.block_table)
        request.block_table.clear()
        request.num_computed = 0
