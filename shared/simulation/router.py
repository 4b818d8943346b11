"""The gateway's router in virtual time."""

from collections.abc import Callable, Mapping, Sequence

from shared.protocol.handover import Taken
from shared.protocol.requests import GenerateRequest
from shared.protocol.steps import StepStarted
from shared.scheduling.kv.prefix_cache import PrefixCache, PrefixCacheMirror
from shared.scheduling.placement.output_lengths import OutputLengths
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, Route, RoutingTarget
from shared.simulation.executor import Progress, VirtualExecutor
from shared.simulation.setup import EPOCH

Choose = Callable[[Sequence[Option], Prompt, float], RoutingTarget | None]  # as shared.scheduling.placement.routing


class VirtualRouter:
    """Sends each online request to the executor that is to answer it first. What it knows of an executor is what it
    has sent there, what came back, heartbeats, and what step messages tell of its prefix cache. Where there is only
    one, nothing is weighed."""

    def __init__(self, executors: Mapping[str, VirtualExecutor], choose: Choose) -> None:
        self._executors = executors
        self._choose = choose
        self._caches = {executor_id: PrefixCacheMirror() for executor_id in executors}
        self._targets = {key: _target_of(each, self._caches[key]) for key, each in executors.items()}
        self._options = [
            Option(target, executors[key].setup.planner)
            for key, target in self._targets.items()
            if executors[key].role.is_for_prompts
        ]
        self._routes: dict[str, Route] = {}  # of requests that have not ended
        self._lengths = OutputLengths()

    @property
    def chooses(self) -> bool:
        """There is more than one executor."""
        return len(self._options) > 1

    @property
    def has_open(self) -> bool:
        """A request that it chose an executor for has not ended."""
        return bool(self._routes)

    def route(self, request: GenerateRequest) -> str:
        """The executor's id; from here on the request counts there."""
        if not self.chooses:
            return self._options[0].target.executor_id
        prompt = Prompt(request.prompt_token_ids)
        target = self._choose(self._options, prompt, self._lengths.mean)
        assert target is not None, "there are executors"
        self._routes[request.request_id] = target.send(prompt)
        return target.executor_id

    def on_step(self, message: StepStarted) -> None:
        """Its prefix cache has changed."""
        if self.chooses:
            self._caches[message.executor_id].apply(message.cache)

    def on_progress(self, progress: Progress) -> None:
        """Tokens and ends."""
        for _, output in progress.outputs if self._routes else ():
            route = self._routes.get(output.request_id)
            if route is not None:
                route.answered()
        for ended in progress.ended:
            route = self._routes.pop(ended.sequence.request_id, None)
            if route is not None:
                route.end()
                self._lengths.add(ended.sequence.num_output_tokens)

    def on_taken(self, taken: Taken) -> None:
        """A request goes on at another executor."""
        route = self._routes.get(taken.request_id)
        if route is not None:
            self._routes[taken.request_id] = self._targets[taken.taker.executor_id].take_over(route)

    def on_heartbeats(self) -> None:
        """Each executor tells what its online requests have it do."""
        for executor_id, target in self._targets.items():
            target.observe(self._executors[executor_id].replica.online_work())


def _target_of(executor: VirtualExecutor, cache: PrefixCache) -> RoutingTarget:
    limits, executor_id = executor.setup.limits, executor.info.executor_id
    return RoutingTarget(executor_id, EPOCH, limits.max_num_batched_tokens, limits.block_size, limits.num_blocks, cache)
