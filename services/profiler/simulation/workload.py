"""What simulated runs replay, read and prepared once for any number of them."""

import random
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from loadgen.offline.bodies import fit_backlog
from loadgen.replay import ReplayPlan
from loadgen.workload.prompts import token_id_prompts
from loadgen.workload.scaling import cap_context
from services.profiler.simulation.encoding import CHARACTERS_PER_TOKEN, PromptEncoder
from services.profiler.simulation.requests import Arrivals, Backlog, PreparedBacklog
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.routing import choose
from shared.simulation.router import Choose
from shared.simulation.setup import ExecutorSetup, in_pools
from shared.simulation.system import VirtualSystem


class SimulatedWorkload:
    """A plan's requests and prompts, cut to an executor's context. Each phase made of it is a run of its own: an
    empty KV cache, the whole backlog, the same random numbers."""

    def __init__(
        self,
        plan: ReplayPlan,
        setup: ExecutorSetup,
        num_clients: int = 1,
        wave_size: int | None = None,
        num_executors: int = 1,
        is_endless: bool = False,
        num_strict: int = 0,
    ) -> None:
        """``num_clients``: whom requests are from, at random by the plan's seed, the k-th client sending 1/k as many
        as the first. ``wave_size``: of the backlog so many requests are submitted at a time, the next when those have
        ended; None submits all at once. ``num_executors``: on how many of the setup it runs, ``num_strict`` of them
        strict and the others relaxed, unless that is 0. ``is_endless``: the backlog never runs out. Raises
        WorkloadError for a model folder without tokenizer."""
        self._wave_size = wave_size
        self._is_endless = is_endless
        self._num_executors, self._num_strict = num_executors, num_strict
        capacity = setup.limits.num_blocks * setup.limits.block_size
        self.max_context = min(plan.max_context or setup.spec.max_model_len, setup.spec.max_model_len, capacity)
        encoder = PromptEncoder(plan.model_path)
        maker = token_id_prompts(plan.model_path, plan.filler, str(plan.scaling.seed))
        self._online_prompts = maker.salted("online")
        self.requests = cap_context(plan.requests, self.max_context)
        self.client_ids = _client_ids(len(self.requests), num_clients, plan.scaling.seed)
        # Texts are cut by the backlog, which has their tokens; only lengths are left to scale here.
        prompts = fit_backlog(plan.prompts, plan.scaling.length_scale, self.max_context, None)
        self.backlog = PreparedBacklog(prompts, encoder, maker.salted("offline"), self.max_context)
        self.notes = plan.departures(self.requests, self.max_context, in_token_ids=True)
        if not encoder.is_exact and any(prompt.num_prompt_tokens is None for prompt in prompts):
            self.notes.append(
                f"offline texts count as a token for every {CHARACTERS_PER_TOKEN} characters: give --model-path to "
                "count them by a tokenizer"
            )

    def phase(
        self,
        setup: ExecutorSetup,
        duration_s: float,
        online: bool,
        offline: bool,
        on_change: Callable[[VirtualPhase], None] | None = None,
        choose: Choose = choose,
        offline_per_s: float | None = None,
        num_executors: int | None = None,
    ) -> VirtualPhase:
        """One run, not yet begun. ``choose``: which executor gets an online request; ``offline_per_s``: so many offline
        requests come in a second, else as the workload has it; ``num_executors``: the workload's unless given. Raises
        ValueError for a strategy that lacks a knob, and for one that fits no pools where there are some."""
        numbers = iter(random.Random(f"{setup.seed}:order").random, None)
        order = FairShare(setup.strategy.make_offline_order(numbers))
        arrivals = Arrivals(self.requests if online else [], self._online_prompts, self.client_ids)
        backlog = Backlog(self.backlog, self._wave_size, self._is_endless, offline_per_s) if offline else None
        setups = in_pools(setup, num_executors or self._num_executors, self._num_strict)
        system = partial(VirtualSystem, setups, order, choose=choose)
        return VirtualPhase(system, arrivals, backlog, duration_s, on_change)


def _client_ids(num_requests: int, num_clients: int, seed: int) -> list[str]:
    names = [f"client-{number}" for number in range(1, num_clients + 1)]
    weights = list(accumulate(1 / number for number in range(1, num_clients + 1)))
    return random.Random(f"{seed}:clients").choices(names, cum_weights=weights, k=num_requests)
