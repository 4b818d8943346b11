"""What a schedule is made by."""

import math
from dataclasses import dataclass

from shared.latency.model import LatencyModel, cheapest_step_ms
from shared.scheduling.placement.role import Role

DEFAULT_MIX_SAMPLES = (
    8  # with fewer, long requests wait long; with many, tokens/s fall: benchmarks.scheduling.mix_samples
)
IDLE_STEP_FACTOR = 2.0  # so that a step with nobody online fits as much as costs what the cheapest step costs


@dataclass(frozen=True, slots=True)
class Benefit:
    """b(P) and b(D) of Echo (section 3.1): what a token of a prompt and one that is generated are worth, the same for
    each token.

    The paper gives no values. A decode over thousands of tokens takes as long as dozens of a prompt's tokens, and holds
    all its KV until it ends: in document QA, 16 and less came to a tenth fewer tokens/s than 64, at which decodes
    go before prompts unless they read very much.
    """

    prefill: float = 1.0
    decode: float = 64.0


DEFAULT_BENEFIT = Benefit()


@dataclass(frozen=True, slots=True)
class Policy:
    """The strategies of a preset, as far as one schedule needs them.

    ``latency_budget_ms``: L of HyGen Alg. 2, the time that offline work may fill a step up to; infinite is none.
    ``packing``: how a step is filled, a name that ``packing_named`` knows. ``idle_budget_ms``: where it is more, L of
    a step while no online request is held. No token waits for such a step, only a request that comes meanwhile.
    ``tolerance``: instead of L, the share of the time that online tokens take alone by which offline work may make them
    come later (``shared.scheduling.credit``). ``benefit``: what tokens are worth to a packing that compares them.
    ``batch_multiple``: of which the tokens of a step with offline prompts are to be a multiple; 0: of none. ``role``:
    what the executor acts as. ``mix_samples``: K of OOCO Alg. 2. ``sheds_online``: where online requests that decode
    take longer than L by themselves, some of them are left out. ``growth_room``: an online request that enters leaves a
    KV block to this share of those that run.
    """

    latency_budget_ms: float = math.inf
    offline_enabled: bool = True
    packing: str = "two-phase"
    idle_budget_ms: float = 0.0
    tolerance: float | None = None
    benefit: Benefit = DEFAULT_BENEFIT
    batch_multiple: int = 0
    role: Role = Role.MIXED
    mix_samples: int = DEFAULT_MIX_SAMPLES
    sheds_online: bool = False
    growth_room: float = 1.0

    def budget_ms(self, has_online: bool, model: LatencyModel) -> float:
        """L of a step, before its online part is known; ``has_online``: an online request is held, whether it runs or
        waits. Where none is, a step may take ``IDLE_STEP_FACTOR`` times what the cheapest takes: a budget below that
        would keep offline work out of an idle executor for ever."""
        if has_online or self.latency_budget_ms == math.inf:
            return self.latency_budget_ms
        return max(self.latency_budget_ms, self.idle_budget_ms, IDLE_STEP_FACTOR * cheapest_step_ms(model))

    @property
    def decodes_limit_ms(self) -> float:
        """S of OOCO, the time that a step of decodes is held to; infinite where there is no such number, as under a
        tolerance."""
        return self.latency_budget_ms or math.inf

    @property
    def online_limit_ms(self) -> float:
        """What online requests that decode may take by themselves; infinite where all of them run. A relaxed executor
        keeps no time between tokens."""
        return self.decodes_limit_ms if self.sheds_online and self.role is not Role.RELAXED else math.inf

    def starves_ms(self, model: LatencyModel) -> float | None:
        """What the cheapest step costs, where that is over the budget of steps beside online work: no offline request
        runs in them, but for probes. None where some may, and under a budget of 0, which means that."""
        if not self.offline_enabled or not 0 < self.latency_budget_ms < math.inf:
            return None
        least_ms = cheapest_step_ms(model)
        return least_ms if least_ms > self.latency_budget_ms else None
