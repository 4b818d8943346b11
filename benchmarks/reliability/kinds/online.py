"""Streams: as they come, from clients that wait as they are told, and from clients that leave at once."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from benchmarks.reliability.kinds.patterns import at_random, side_by_side
from benchmarks.reliability.kinds.tally import Tally
from loadgen.client.abilities import COMPLETIONS, Abilities, RequestMaker
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.openloop import sleep_until
from loadgen.client.records import RequestRecord
from loadgen.workload.prompts import token_id_prompts
from loadgen.workload.traces import TraceRequest

Tell = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class Requests:
    """Greedy completions of token ids that share no prefix, of lengths from half to one and a half of the means."""

    model: str
    num_prompt_tokens: int
    num_output_tokens: int
    salt: str = "requests"
    _rng: random.Random = field(init=False)
    _maker: RequestMaker = field(init=False)
    _numbers: "count[int]" = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        abilities = Abilities(COMPLETIONS, token_ids=True, exact_output=True, batches=True)
        object.__setattr__(self, "_rng", random.Random(self.salt))
        object.__setattr__(self, "_maker", RequestMaker(abilities, self.model, token_id_prompts(None, None, self.salt)))

    def stream(self) -> StreamRequest:
        """The next one."""
        return self._maker.online(self._drawn(), next(self._numbers))

    def body(self) -> dict[str, object]:
        """The next one, not streamed."""
        drawn = self._drawn()
        prompt = self._maker.prompts.prompt(drawn, next(self._numbers))
        return self._maker.body(prompt, drawn.num_output_tokens, ignore_eos=True)

    def _drawn(self) -> TraceRequest:
        return TraceRequest(0.0, self._length(self.num_prompt_tokens), self._length(self.num_output_tokens))

    def _length(self, mean: int) -> int:
        return max(1, round(mean * self._rng.uniform(0.5, 1.5)))


@dataclass(slots=True)
class OpenStreams:
    """``rate`` requests a second, Poisson, whatever becomes of them; each counts from when it was due. ``tell`` gets
    each record at its end."""

    client: OpenAIClient
    requests: Requests
    rate: float
    seed: int = 0
    tell: Tell = lambda _: None
    tally: Tally = field(default_factory=lambda: Tally("streams"))
    _is_stopped: bool = False

    async def run(self) -> None:
        """Until it is cancelled, or stopped and all that were sent have ended."""
        rng, due_s = random.Random(self.seed), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while not self._is_stopped:
                due_s += rng.expovariate(self.rate)
                request = self.requests.stream()
                await sleep_until(due_s)
                tasks.create_task(self._send(request, RequestRecord(due_s)))

    def stop(self) -> None:
        """Send no more."""
        self._is_stopped = True

    async def _send(self, request: StreamRequest, record: RequestRecord) -> None:
        await self.client.stream(request, record)
        self.tally.note(record)
        self.tell(record)


@dataclass(slots=True)
class Connections:
    """So many clients, each with one stream after the other; one that is refused comes back when it is told to."""

    client: OpenAIClient
    requests: Requests
    num_clients: int
    tell: Tell = lambda _: None
    tally: Tally = field(default_factory=lambda: Tally("connections"))
    _is_stopped: bool = False

    async def run(self) -> None:
        await side_by_side(self.num_clients, self._one_client)

    def stop(self) -> None:
        """Send no more."""
        self._is_stopped = True

    async def _one_client(self) -> None:
        while not self._is_stopped:
            record = RequestRecord(time.perf_counter())
            await self.client.stream(self.requests.stream(), record)
            self.tally.note(record)
            self.tell(record)
            if not (record.ok or self._is_stopped):
                await asyncio.sleep(record.retry_after_s or 1.0)


@dataclass(slots=True)
class Leavers:
    """``rate`` connections a second that ask for a stream and are gone within ``stay_s``, which counts as served."""

    client: OpenAIClient
    requests: Requests
    rate: float
    stay_s: float = 0.2
    seed: int = 0
    tally: Tally = field(default_factory=lambda: Tally("leavers"))

    async def run(self) -> None:
        await at_random(self.rate, self.seed, lambda rng: self._visit(rng.uniform(0, self.stay_s)))

    async def _visit(self, stay_s: float) -> None:
        record = RequestRecord(time.perf_counter())
        try:
            async with asyncio.timeout(stay_s):
                await self.client.stream(self.requests.stream(), record)
        except TimeoutError:
            record.finished_s = time.perf_counter()
        self.tally.note(record)
