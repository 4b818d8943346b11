"""What online users get from each executor, told on the bus."""

import asyncio

from services.gateway.live.generation import OnlineGeneration
from shared.bus import Bus
from shared.clock import Clock
from shared.protocol import subjects
from shared.protocol.profiling.online import FinishedOnline, OnlineServed

PERIOD_S = 1.0


class OnlineReporter:
    """Counts as tokens arrive, and sends one message a second for each executor that anything came from."""

    def __init__(self, bus: Bus, gateway_id: str, clock: Clock) -> None:
        self._bus = bus
        self._gateway_id = gateway_id
        self._clock = clock
        self._served: dict[str, OnlineServed] = {}  # by executor, since the last messages
        self._open: dict[str, dict[OnlineGeneration, None]] = {}  # by executor, in the order of their start there
        self._has_news = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._has_news.wait()
            await asyncio.sleep(PERIOD_S)  # bounds the rate of messages, however many tokens there are
            self._has_news.clear()
            await self.publish()

    async def publish(self) -> None:
        """Send what there is now; what cannot be sent is lost."""
        served, self._served = self._served, {}
        for executor_id, each in served.items():
            each.unix_s = self._clock.unix_s()
            each.oldest_open_s = min((open.arrival_s for open in self._open.get(executor_id, ())), default=None)
            await self._bus.publish_or_drop(subjects.online(executor_id), each)

    def started(self, generation: OnlineGeneration) -> None:
        """It was sent to an executor for the first time, or once more."""
        self.moved(generation)
        assert generation.executor_id is not None
        self._of(generation.executor_id).num_started += generation.attempt == 1

    def moved(self, generation: OnlineGeneration) -> None:
        """After ``lost``: it goes on at another executor."""
        assert generation.executor_id is not None
        self._open.setdefault(generation.executor_id, {})[generation] = None

    def tokens(self, generation: OnlineGeneration, now_s: float) -> None:
        """Its executor's tokens arrived; ``last_token_s`` is still that of the ones before."""
        assert generation.executor_id is not None
        served = self._of(generation.executor_id)
        if generation.last_token_s is None:
            served.latencies.ttft_ms.add((now_s - generation.started_s) * 1e3)
        else:
            served.latencies.tbt_ms.add((now_s - generation.last_token_s) * 1e3)

    def ended(self, generation: OnlineGeneration, was_answered: bool) -> None:
        """It left its executor for good. Not answered whole it was work too, without latencies of the whole."""
        executor_id = generation.executor_id
        if executor_id is None:
            return
        self.lost(generation)
        served = self._of(executor_id)
        num_prompt_tokens, num_tokens = len(generation.request.prompt_token_ids), len(generation.output_token_ids)
        served.finished.append(FinishedOnline(generation.arrival_s, num_prompt_tokens, num_tokens))
        first_s, last_s = generation.first_token_s, generation.last_token_s
        if was_answered and num_tokens and first_s is not None and last_s is not None:
            e2e_ms = (last_s - generation.started_s) * 1e3
            served.latencies.e2e_ms.add(e2e_ms)
            served.latencies.normalized_latency_ms.add(e2e_ms / num_tokens)
            if num_tokens > 1:
                served.latencies.tpot_ms.add((last_s - first_s) / (num_tokens - 1) * 1e3)

    def lost(self, generation: OnlineGeneration) -> None:
        """It is its executor's no more, and did not end there; nothing where it has none."""
        if generation.executor_id is not None:
            generations = self._open.get(generation.executor_id, {})
            generations.pop(generation, None)
            if not generations:
                self._open.pop(generation.executor_id, None)

    def _of(self, executor_id: str) -> OnlineServed:
        served = self._served.get(executor_id)
        if served is None:
            served = self._served[executor_id] = OnlineServed(executor_id, self._gateway_id)
            self._has_news.set()
        return served
