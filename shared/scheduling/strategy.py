"""A strategy: what stands in each seam of the scheduler, and the knobs of what stands there, as one value.

It is one table of the settings, one field of an executor's registration and one argument of the simulator. Presets are
instances of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.named import named
from shared.scheduling.kv.eviction.evictions import EVICTIONS, make_eviction
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.reserve import KV_RESERVES, Reserve, make_reserve
from shared.scheduling.kv.sharing import KV_SHARINGS, KVSharing, kv_sharing_named
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.rate import OfflineRate
from shared.scheduling.orders.offline.registry import (
    DEFAULT_BLOCK_SIZE,
    OFFLINE_ORDERS,
    OfflineOrderKnobs,
    make_offline_order,
)
from shared.scheduling.orders.online.order import OnlineOrder
from shared.scheduling.orders.online.registry import ONLINE_ORDERS, OnlineOrderKnobs, make_online_order
from shared.scheduling.packing.deadlines.token_slo import DEADLINE_RULES, TokenSlo
from shared.scheduling.packing.packings import PACKINGS, packing_named
from shared.scheduling.policy import DEFAULT_BENEFIT, DEFAULT_MIX_SAMPLES, Benefit, Policy
from shared.scheduling.request import Kind
from shared.settings.setting import BASE, choices

PRESET_NAMES = (
    *("hygen", "sarathi++", "hygen-star", "online-only", "bros", "round-robin", "fcfs", "echo", "blendserve"),
    "ooco",
)
LATENCY_BUDGETS = ("none", "fixed", "profiled", "deadline")
KNOBS = ("online_knobs", "offline_knobs")  # fields
OFFLINE_RATES = ("unlimited", "fixed")
OFFLINE_HANDOVERS = ("pushed", "pulled")
ONLINE_OVERLOADS = ("best-effort", "shed")
NO_OFFLINE_WORK = "none"
BLIND_IDLE_BUDGET_MS = 100.0  # of steps that cannot be stopped, where nothing is said of what TTFT can bear


def _one_of(known: Iterable[str], description: str) -> Meta:
    return Meta(description=description, extra=choices(known))


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """What is scheduled how: a preset, and what is to differ from it. What fits no other part is refused."""

    preset: Annotated[str, Meta(description="what the rest is taken from", extra=choices(PRESET_NAMES) | BASE)] = (
        "hygen"
    )
    online_order: Annotated[str, _one_of(ONLINE_ORDERS, "fcfs, or vtc: fair between clients, by API key or user")] = (
        "fcfs"
    )
    offline_order: Annotated[
        str,
        _one_of(
            OFFLINE_ORDERS,
            "which offline request enters next: by arrival, by shared prefix, that with an eye on age, by what the "
            "executor's cache has, or compute-bound ones beside memory-bound ones; none: none enters",
        ),
    ] = "psm-fair"
    packing: Annotated[str, _one_of(PACKINGS, "how a step is filled")] = "two-phase"
    latency_budget: Annotated[
        str,
        _one_of(
            LATENCY_BUDGETS,
            "what bounds a step with offline work: nothing, budget_ms, what the profiler finds, or the most urgent "
            "online deadline",
        ),
    ] = "profiled"
    offline_rate: Annotated[str, _one_of(OFFLINE_RATES, "whether offline requests enter at a fixed rate")] = "unlimited"
    kv_eviction: Annotated[str, _one_of(EVICTIONS, "whose cached KV goes first where blocks are short")] = "lru"
    kv_sharing: Annotated[
        str,
        _one_of(
            KV_SHARINGS,
            "what becomes of offline KV where online work needs room: it is computed again, it stays, or it shares its "
            "blocks from the other end",
        ),
    ] = "recompute"
    kv_reserve: Annotated[
        str,
        _one_of(
            KV_RESERVES,
            "KV that offline requests leave free when they enter: none, or what a burst of online work needs, by what "
            "online requests held",
        ),
    ] = "none"
    offline_handover: Annotated[
        str,
        _one_of(
            OFFLINE_HANDOVERS,
            "executors with roles: where offline requests generate: on strict ones, as online requests do, or where "
            "their prompt was until a strict one asks for them",
        ),
    ] = "pushed"
    online_overload: Annotated[
        str,
        _one_of(
            ONLINE_OVERLOADS,
            "mix-decoding: where online decodes alone take longer than budget_ms: all of them run, or as many as do "
            "not, the oldest",
        ),
    ] = "best-effort"
    budget_ms: Annotated[float, Meta(ge=0, description="fixed latency budget of a step; 0: as it is profiled")] = 0.0
    tolerance: Annotated[
        float,
        Meta(
            ge=0,
            description="share of the time that online tokens take alone by which offline work may make them come "
            "later, where neither budget_ms nor SLOs are given",
        ),
    ] = 0.02
    idle_budget_ms: Annotated[
        float,
        Meta(
            ge=0,
            description="latency budget of a step while no online request is there, if more; 0: whatever fits a step, "
            "where the engine can stop it when somebody comes",
        ),
    ] = 0.0
    offline_qps: Annotated[
        float, Meta(ge=0, description="offline requests/s that enter each executor, where their rate is fixed")
    ] = 0.0
    ttft_slo_ms: Annotated[float, Meta(gt=0, description="deadline: a first token is due so long after arrival")] = (
        400.0
    )
    tpot_slo_ms: Annotated[float, Meta(gt=0, description="deadline: a later one is due so long after the last")] = 200.0
    deadline_rule: Annotated[
        str,
        _one_of(
            DEADLINE_RULES,
            "deadline: what later tokens' times count from: the last token (BROS), the request's arrival, so that "
            "token i is due ttft_slo_ms + i tpot_slo_ms after it (Echo), or its first token",
        ),
    ] = "last-token"
    slo_group_tokens: Annotated[
        int, Meta(ge=1, description="deadline: later tokens are due in groups of so many, after their times together")
    ] = 1
    reserve_sigmas: Annotated[
        float,
        Meta(ge=0, description="burst reserve: the mean of what online requests held, and so many standard deviations"),
    ] = 2.0
    reserve_window_s: Annotated[
        float, Meta(gt=0, description="burst reserve: seconds back over which these are taken")
    ] = 3600.0
    prefill_benefit: Annotated[
        float, Meta(gt=0, description="kv-aware packing: what computing a token of an offline prompt is worth")
    ] = DEFAULT_BENEFIT.prefill
    decode_benefit: Annotated[
        float, Meta(gt=0, description="kv-aware packing: what generating an offline token is worth")
    ] = DEFAULT_BENEFIT.decode
    mix_samples: Annotated[
        int,
        Meta(
            ge=0,
            description="mix-decoding: offline decodes of a step that are drawn at random, so that long ones run too, "
            "before the shortest of the others",
        ),
    ] = DEFAULT_MIX_SAMPLES
    pull_margin: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="pulled: share of the latency budget that a strict executor's step must leave before it asks "
            "for another offline request",
        ),
    ] = 0.1
    batch_multiple: Annotated[
        int,
        Meta(
            ge=0,
            description="offline prompts are cut so that the tokens of a step are a multiple of it, as tiles of GEMMs "
            "are: 128 on a GPU; 0: of none",
        ),
    ] = 0
    growth_room: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="a waiting online request enters where its KV fits beside a block for this share of the online "
            "requests that run, so that those can grow; 0: where its KV fits",
        ),
    ] = 1.0
    online_knobs: OnlineOrderKnobs = OnlineOrderKnobs()
    offline_knobs: OfflineOrderKnobs = OfflineOrderKnobs()

    def __post_init__(self) -> None:
        named(DEADLINE_RULES, self.deadline_rule, "deadline rule")
        problem = self._misfit()
        if problem:
            raise ValueError(problem)

    @classmethod
    def of(cls, preset: str = "hygen", **given: Any) -> Strategy:
        """The preset, but for what is given: fields, and knobs of orders by their names. A fixed budget takes the place
        of a profiled one. Raises ValueError for an unknown name, and for parts that do not fit each other."""
        base = preset_named(preset)
        if given.get("budget_ms") and base.latency_budget == "profiled":
            given.setdefault("latency_budget", "fixed")
        for name in KNOBS:
            knobs = getattr(base, name)
            own = {knob: given.pop(knob) for knob in knobs.__struct_fields__ if knob in given}
            given[name] = msgspec.structs.replace(knobs, **own)
        made = msgspec.structs.replace(base, **given)
        made.make_online_order()
        made.make_offline_order(iter(()))
        return made

    @property
    def serves_offline(self) -> bool:
        """Offline requests run at all."""
        return self.offline_order != NO_OFFLINE_WORK

    @property
    def uses_latency_budget(self) -> bool:
        """Offline work is held to a number of milliseconds a step: L of HyGen Alg. 2."""
        return self.latency_budget in ("fixed", "profiled")

    @property
    def uses_deadlines(self) -> bool:
        """Online requests are scheduled by when their tokens are due."""
        return self.latency_budget == "deadline"

    @property
    def token_slo(self) -> TokenSlo:
        """By which deadlines go, where anybody goes by them."""
        return DEADLINE_RULES[self.deadline_rule](self.ttft_slo_ms, self.tpot_slo_ms, self.slo_group_tokens)

    @property
    def benefit(self) -> Benefit:
        """What offline tokens are worth, to a packing that compares them."""
        return Benefit(self.prefill_benefit, self.decode_benefit)

    def changes(self) -> dict[str, str | int | float]:
        """By name, what is not as the preset has it: ``of`` makes the same strategy of it again."""
        base, own = flat(preset_named(self.preset)), flat(self)
        implied = {"latency_budget"} if self.budget_ms and base["latency_budget"] == "profiled" else set()
        return {name: value for name, value in own.items() if value != base[name] and name not in implied}

    def missing_knob(self) -> str:
        """What has to be given before anything runs under it; empty where nothing is missing."""
        is_missing = self.offline_rate == "fixed" and not self.offline_qps
        return f"preset {self.preset} serves offline requests at a fixed rate: give --offline-qps" if is_missing else ""

    def make_offline_rate(self) -> OfflineRate:
        """At which offline requests enter one executor. Raises ValueError where the rate is missing."""
        if self.missing_knob():
            raise ValueError(self.missing_knob())
        return OfflineRate(self.offline_qps if self.offline_rate == "fixed" else math.inf)

    @property
    def pushed_kinds(self) -> tuple[Kind, ...]:
        """Those that go from a relaxed executor to a strict one as soon as their prompt is computed."""
        return (Kind.ONLINE,) if self.pulls else (Kind.ONLINE, Kind.OFFLINE)

    @property
    def pulls(self) -> bool:
        """Strict executors ask for offline requests."""
        return self.offline_handover == "pulled"

    @property
    def sharing(self) -> KVSharing:
        """What becomes of offline requests' KV. Raises ValueError for an unknown name."""
        return kv_sharing_named(self.kv_sharing)

    @property
    def why_no_pools(self) -> str:
        """Why requests cannot move with their KV, so that executors are neither strict nor relaxed; empty where they
        can."""
        if not self.sharing.pauses:
            return ""
        return (
            f"with kv_sharing {self.kv_sharing} KV is paused and shares blocks, which does not move between strict and "
            "relaxed executors: set it to recompute"
        )

    def make_pool(self, limits: Limits, num_host_slots: int) -> KVPool:
        """An executor's KV blocks; ``num_host_slots``: KV slots of host memory behind them."""
        return self.sharing.make_pool(
            limits.num_blocks, limits.block_size, num_host_slots, make_eviction(self.kv_eviction)
        )

    def make_reserve(self) -> Reserve:
        """What an executor's offline requests leave for online ones; a new one."""
        return make_reserve(self.kv_reserve, self.reserve_window_s, self.reserve_sigmas)

    @property
    def needs_readers(self) -> bool:
        """Executors are to be told how many offline requests will read what they have cached."""
        return self.serves_offline and make_eviction(self.kv_eviction).needs_readers

    def make_online_order(self) -> OnlineOrder:
        """A new one. Raises ValueError for an unknown name or bad knobs."""
        return make_online_order(self.online_order, self.online_knobs)

    def make_offline_order(self, numbers: Iterator[float], block_size: int = DEFAULT_BLOCK_SIZE) -> OfflineOrder:
        """A new one. ``numbers``: endless, uniform in [0, 1), for what is drawn. Raises ValueError for an unknown name
        or bad knobs."""
        return make_offline_order(self.offline_order, self.offline_knobs, numbers, block_size)

    def policy(
        self,
        latency_budget_ms: float | None,
        model_is_known: bool = True,
        idle_budget_ms: float = 0.0,
        tolerance: float | None = None,
        is_interruptible: bool = False,
    ) -> Policy:
        """The policy of a step under a budget, or with a ``tolerance`` under that; without a known one, or without a
        latency model to keep deadlines with, a strategy that needs it serves no offline work yet. A step without online
        requests that the engine can stop, ``is_interruptible``, needs no bound."""
        own = partial(
            Policy,
            packing=self.packing,
            benefit=self.benefit,
            batch_multiple=self.batch_multiple,
            mix_samples=self.mix_samples,
            sheds_online=self.online_overload == "shed",
            growth_room=self.growth_room,
        )
        if not self.uses_latency_budget:
            return own(math.inf, self.serves_offline and (model_is_known or not self.uses_deadlines))
        if latency_budget_ms is None:
            return own(0.0, offline_enabled=False)
        if not idle_budget_ms:
            idle_budget_ms = math.inf if is_interruptible else BLIND_IDLE_BUDGET_MS if tolerance is not None else 0.0
        return own(latency_budget_ms, self.serves_offline, idle_budget_ms=idle_budget_ms, tolerance=tolerance)

    def _misfit(self) -> str:
        """Why the parts do not fit each other; empty where they do."""
        packing = packing_named(self.packing)
        if self.online_order != "fcfs" and packing.orders_online:
            return f"packing {self.packing} orders online requests itself: leave --online-order {self.online_order} out"
        if self.latency_budget not in packing.latency_budgets:
            known = " or ".join(packing.latency_budgets)
            return f"packing {self.packing} works with latency budget {known}, not with {self.latency_budget}"
        if packing.offline_orders is not None and self.offline_order not in packing.offline_orders:
            known = " or ".join(packing.offline_orders)
            return f"packing {self.packing} works with offline order {known}, not with {self.offline_order}"
        if self.kv_reserve != "none" and not packing.keeps_reserve:
            return f"packing {self.packing} lets nobody pass: leave --kv-reserve {self.kv_reserve} out"
        if self.batch_multiple and not packing.cuts_to_multiples:
            return f"packing {self.packing} cuts no prompts to multiples: leave --batch-multiple out"
        if self.why_no_pools and packing.moves_requests:
            return f"packing {self.packing} is for executors that hand requests over: {self.why_no_pools}"
        if self.online_overload == "shed" and not packing.sheds_online:
            return f"packing {self.packing} leaves no online decode out: leave --online-overload shed out"
        if self.online_overload == "shed" and self.latency_budget != "fixed":
            return "--online-overload shed leaves out what breaks the SLO: give that as --budget-ms"
        if self.budget_ms and self.latency_budget != "fixed":
            return f"latency budget {self.latency_budget} is no number of milliseconds: leave --budget-ms out"
        if self.offline_qps and self.offline_rate != "fixed":
            return f"preset {self.preset} has no fixed offline rate: leave --offline-qps out"
        return ""


def flat(strategy: Strategy) -> dict[str, str | int | float]:
    """All settings by their names, those of the orders beside the rest."""
    own = msgspec.structs.asdict(strategy)
    knobs = [msgspec.structs.asdict(own.pop(name)) for name in KNOBS]
    return own | {name: value for each in knobs for name, value in each.items()}


PRESETS = {
    strategy.preset: strategy
    for strategy in (
        Strategy(),
        # HyGen section 5.1: online first, no SLO; and that at an offline QPS that keeps the SLO
        Strategy(preset="sarathi++", offline_order="fcfs", latency_budget="none"),
        Strategy(preset="hygen-star", offline_order="fcfs", latency_budget="none", offline_rate="fixed"),
        Strategy(preset="online-only", offline_order=NO_OFFLINE_WORK, latency_budget="none"),
        # BROS: Alg. 1, and what section 7 compares it with: turns (section 2.2), and no priorities, as vLLM
        Strategy(
            preset="bros", packing="deadline", latency_budget="deadline", kv_sharing="bidirectional", growth_room=0.25
        ),
        Strategy(preset="round-robin", offline_order="fcfs", packing="round-robin", latency_budget="none"),
        Strategy(preset="fcfs", offline_order="fcfs", packing="fcfs", latency_budget="none"),
        # Echo: sections 4.1 and 6, with the SLOs of its evaluation
        Strategy(
            preset="echo",
            offline_order="kv-aware",
            packing="kv-aware",
            latency_budget="deadline",
            kv_eviction="task-aware",
            kv_reserve="burst",
            deadline_rule="first-token",
            ttft_slo_ms=1000.0,
            tpot_slo_ms=50.0,
        ),
        # BlendServe: section 3, and beside online work under HyGen's budget, which it does not have
        Strategy(preset="blendserve", offline_order="blend"),
        # OOCO: section 3.4; S is --budget-ms
        Strategy(preset="ooco", packing="mix-decoding", offline_handover="pulled"),
    )
}


def preset_named(name: str) -> Strategy:
    """Raises ValueError that lists the known presets."""
    return named(PRESETS, name, "preset")
