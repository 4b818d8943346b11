"""Runs requests to their end on an engine the hard way: random mixes, random chunks, scattered and shared blocks."""

import random
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from shared.errors import EngineError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine, Sequence, StepBatch, StepResult, TokenHistory


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


Scheduled = list[tuple[Request, Sequence]]


class EngineDriver:
    """Owns the blocks of an engine: allocates at random, shares full blocks of equal prefixes, as soon as the step that
    fills them begins where every step is to end well, and drops whole requests. As many steps are in flight as the
    engine has stages."""

    def __init__(
        self,
        engine: Engine,
        seed: int,
        max_tokens: int = 256,
        drop: float = 0.0,
        restart: float = 0.0,
        fail: float = 0.0,
        interrupt: float = 0.0,
    ) -> None:
        """A step runs at most ``max_tokens``; before each, one request that is in none loses its KV with probability
        ``drop``, and one is aborted, and begins again under its id, with probability ``restart``. A step fails with
        probability ``fail``: a sequence is in it that cannot be run. It is interrupted, sometime, with probability
        ``interrupt``."""
        self._engine = engine
        self._rng = random.Random(seed)
        self._max_tokens = max_tokens
        self._drop = drop
        self._restart = restart
        self._fail = fail
        self._interrupt = interrupt
        self._shares_in_step = not (fail or interrupt)
        self._users: Counter[int] = Counter()
        self._cached: dict[tuple[str | int, ...], int] = {}  # adapter, whole prefix to a full block's end -> the block
        self.shared_blocks = 0
        self.drops = 0
        self.restarts = 0
        self.holds = 0  # requests with KV that were left out of a step
        self.steps = 0
        self.failures = 0
        self.interruptions = 0
        self.max_in_flight = 0
        self._step_s = 0.0  # of the last one that was not interrupted

    def run(self, requests: list[Request]) -> dict[str, list[int]]:
        """Outputs by request id, EOS included."""
        eos, depth = self._engine.spec.eos_token_ids, self._engine.spec.pipeline_depth
        in_flight: deque[tuple[Scheduled, Future[StepResult]]] = deque()
        with ThreadPoolExecutor(depth) as threads:
            while True:
                busy = {request.request_id for scheduled, _ in in_flight for request, _ in scheduled}
                free = [r for r in requests if r.request_id not in busy and not r.is_finished(eos)]
                if free and len(in_flight) < depth:
                    scheduled = self._schedule_some(free)
                    batch = self._batch(scheduled)
                    in_flight.append((scheduled, threads.submit(self._engine.execute, batch)))
                    if self._interrupt and self._rng.random() < self._interrupt:
                        time.sleep(self._rng.random() * self._step_s)
                        self._engine.interrupt(batch.step)
                    self.max_in_flight = max(self.max_in_flight, len(in_flight))
                elif in_flight:
                    self._finish(*in_flight.popleft())
                else:
                    return {request.request_id: request.output for request in requests}

    def _schedule_some(self, running: list[Request]) -> Scheduled:
        self._maybe_drop(running)
        self._maybe_restart(running)
        scheduled = self._schedule(running)
        chosen = {request.request_id for request, _ in scheduled}
        self.holds += sum(request.num_computed > 0 and request.request_id not in chosen for request in running)
        return scheduled

    def _batch(self, scheduled: Scheduled) -> StepBatch:
        sequences = [sequence for _, sequence in scheduled]
        if self._fail and self._rng.random() < self._fail:
            sequences.append(Sequence("bad", [1], 0, [self._engine.spec.num_blocks], SamplingParams(1), True))
        self.steps += 1
        return StepBatch(self.steps - 1, sequences, may_be_interrupted=self._interrupt > 0)

    def _finish(self, scheduled: Scheduled, running: Future[StepResult]) -> None:
        try:
            result = running.result()
        except EngineError:
            if not self._fail:
                raise
            self.failures += 1
            for request, _ in scheduled:
                self._release(request)
            return
        if result.is_interrupted:
            self.interruptions += 1
            return
        self._step_s = result.latency_ms / 1000.0
        for request, sequence in scheduled:
            request.num_computed += len(sequence.token_ids)
            self._publish_full_blocks(request, request.num_computed)
            if sequence.needs_sample:
                request.output.append(result.sampled[request.request_id])
            if request.is_finished(self._engine.spec.eos_token_ids):
                self._release(request)

    def _schedule(self, running: list[Request]) -> Scheduled:
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
            if self._shares_in_step:
                self._publish_full_blocks(request, end)
            new = tokens[request.num_computed : end]
            history = TokenHistory(tokens, len(request.prompt)) if request.sampling.adjusts_logits else None
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
                        history=history if end == len(tokens) else None,
                    ),
                )
            )
        return scheduled

    def _take_shared_prefix(self, request: Request) -> None:
        size = self._engine.spec.block_size
        tokens = request.tokens
        self._release(request)
        for end in range(size, len(tokens), size):  # the last token is always computed: its logits are needed
            block = self._cached.get((request.sampling.adapter, *tokens[:end]))
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

    def _publish_full_blocks(self, request: Request, num_tokens: int) -> None:
        size = self._engine.spec.block_size
        for index in range(num_tokens // size):
            prefix = request.sampling.adapter, *request.tokens[: (index + 1) * size]
            self._cached.setdefault(prefix, request.block_table[index])

    def _maybe_drop(self, running: list[Request]) -> None:
        if self._rng.random() < self._drop:
            victim = self._rng.choice(running)
            self.drops += victim.num_computed > 0
            self._release(victim)

    def _maybe_restart(self, running: list[Request]) -> None:
        if self._restart and self._rng.random() < self._restart:
            victim = self._rng.choice(running)
            self.restarts += bool(victim.output)
            self._release(victim)
            victim.output.clear()

    def _release(self, request: Request) -> None:
        self._users.subtract(request.block_table)
        request.block_table.clear()
        request.num_computed = 0


def check_rows_read_what_others_of_their_step_write(engine: Engine, fills_right: bool = False) -> None:
    """A prompt, one that begins as it does and computes its rest, and one of which a single token is left."""
    size, greedy = engine.spec.block_size, SamplingParams(max_tokens=1, temperature=0.0)
    prompts = {name: [*range(50, 50 + 3 * size), *end] for name, end in (("a", [60, 61]), ("b", [70]), ("c", [80]))}

    def sampled(step: int, begun: dict[str, tuple[int, list[int]]]) -> dict[str, int]:
        rows = [
            Sequence(name, prompts[name][start:], start, blocks, greedy, needs_sample=True, fills_right=fills_right)
            for name, (start, blocks) in begun.items()
        ]
        return dict(engine.execute(StepBatch(step, rows)).sampled)

    together = sampled(0, {"a": (0, [1, 2, 3, 4]), "b": (2 * size, [1, 2, 5, 6]), "c": (3 * size, [1, 2, 3, 7])})
    assert together == {key: sampled(1, {key: (0, [8, 9, 10, 11])})[key] for key in prompts}


def check_only_asked_rows_are_sampled(engine: Engine) -> None:
    """A sequence that ends before its last known token gets none, and an empty step is none."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    sequences = [
        Sequence("asked", [5, 6, 7], 0, [0], sampling, needs_sample=True),
        Sequence("chunk", [5, 6, 7], 0, [1], sampling, needs_sample=False),
    ]
    result = engine.execute(StepBatch(0, sequences))
    assert list(result.sampled) == ["asked"]
    assert result.latency_ms > 0
    assert engine.execute(StepBatch(1, sequences[1:])).sampled == {}
    assert engine.execute(StepBatch(2, [])).sampled == {}
