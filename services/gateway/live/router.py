"""Sends each online request to the executor that is expected to answer it first."""

import asyncio
import contextlib

from services.gateway.live.registry import ExecutorRegistry, LiveExecutor
from shared.errors import NoExecutorError
from shared.latency.model import LatencyModel
from shared.scheduling.kv.block_hash import PLAIN, KVScope
from shared.scheduling.placement.output_lengths import OutputLengths
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, Route, choose
from shared.watch.tuning import Tuning


class Router:
    """``shared.scheduling.placement.routing`` over live executors, fitted latency models, and lengths of answers."""

    def __init__(self, registry: ExecutorRegistry, tuning: Tuning) -> None:
        self.registry = registry
        self._tuning = tuning
        self.lengths = OutputLengths()  # of the answers that are complete

    def route(self, token_ids: list[int], scope: KVScope = PLAIN) -> Route | None:
        """For a request with these tokens, which counts at its executor from here on; None where none takes any with
        its adapter."""
        options = [Option(each.target, self._model(each)) for each in self.registry.for_prompts(scope.adapter)]
        prompt = Prompt(token_ids, scope)
        target = choose(options, prompt, self.lengths.mean)
        return None if target is None else target.send(prompt)

    async def route_within(self, token_ids: list[int], timeout_s: float, scope: KVScope = PLAIN) -> Route:
        """As ``route``, waiting for an executor to appear. Raises NoExecutorError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.registry.wait_available(scope.adapter)
                    route = self.route(token_ids, scope)
                    if route is not None:
                        return route
        raise NoExecutorError(f"{self.registry.unavailable_because(scope.adapter)}; waited {timeout_s:g} s")

    def load_ms(self, executor: LiveExecutor) -> float:
        """Until a request of one token that is sent there now is answered; 0 where no latency model is fitted yet."""
        model = self._model(executor)
        if model is None:
            return 0.0
        return executor.target.answer_ms(Prompt([0]), model, self.lengths.mean)

    def wait_s(self) -> float | None:
        """Until a request that is sent now has its turn, at the executor where that is soonest; None where none is
        there, or one has no latency model yet."""
        waits_s = []
        for executor in self.registry.for_prompts():
            model = self._model(executor)
            if model is None:
                return None
            waits_s.append(executor.target.wait_ms(model, self.lengths.mean, executor.info.max_num_seqs) / 1e3)
        return min(waits_s, default=None)

    def _model(self, executor: LiveExecutor) -> LatencyModel | None:
        key = executor.info.profile_key
        return self._tuning.model(key) if self._tuning.knows_model(key) else None
