"""A whole simulated run: with a baseline the online-only and offline-only windows, then the measured one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime

from loadgen.offline import fit_backlog
from loadgen.outcome import OFFLINE_ONLY, ONLINE_ONLY, TOGETHER, compose
from loadgen.progress import ReplayProgress
from loadgen.prompts import token_id_prompts
from loadgen.replay import ReplayPlan
from loadgen.report import Report, RunFacts
from loadgen.scaling import cap_context
from services.profiler.simulation.backlog import Backlog
from services.profiler.simulation.encoding import CHARACTERS_PER_TOKEN, PromptEncoder
from services.profiler.simulation.virtual_executor import ExecutorSetup, VirtualExecutor
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.scheduling.offline_order import make_offline_order
from shared.scheduling.presets import DEFAULT_UTILITY_RATIO, Preset

STEPS_PER_PROGRESS = 500


@dataclass(frozen=True, slots=True)
class Strategy:
    """A preset and its two knobs, each None where the preset does not use it."""

    preset: Preset
    budget_ms: float | None = None
    offline_qps: float | None = None


class Simulation:
    """``run``, then ``report``; the report may be taken after an interrupt. Same inputs, same report, but for its
    date. Raises ValueError for a strategy whose knobs do not fit, WorkloadError for a model folder without tokenizer.
    """

    def __init__(
        self, plan: ReplayPlan, setup: ExecutorSetup, strategy: Strategy, url: str, progress: ReplayProgress
    ) -> None:
        self.phases: dict[str, VirtualPhase] = {}
        self._plan = plan
        self._setup = setup
        self._strategy = strategy
        self._url = url
        self._progress = progress
        self._notes: list[str] = []
        strategy.preset.offline_rate(strategy.offline_qps)
        capacity = setup.limits.num_blocks * setup.limits.block_size
        self._max_context = min(plan.max_context or setup.spec.max_model_len, setup.spec.max_model_len, capacity)
        self._encoder = PromptEncoder(plan.model_path)
        self._maker = token_id_prompts(plan.model_path, plan.filler, str(plan.scaling.seed))
        self._requests = cap_context(plan.requests, self._max_context)
        # Texts are cut by the backlog, which has their tokens; only lengths are left to scale here.
        self._prompts = fit_backlog(plan.prompts, plan.scaling.length_scale, self._max_context, None)
        capped = sum(ours != theirs for ours, theirs in zip(self._requests, plan.requests, strict=True))
        if capped:
            self._notes.append(f"{capped} online requests were cut to the context of {self._max_context} tokens")
        if not self._encoder.is_exact and any(prompt.num_prompt_tokens is None for prompt in self._prompts):
            self._notes.append(
                f"offline texts count as a token for every {CHARACTERS_PER_TOKEN} characters: give --model-path to "
                "count them by a tokenizer"
            )

    def run(self) -> None:
        """All phases, one after another."""
        plan, duration_s = self._plan, self._plan.scaling.duration_s
        if plan.baseline:
            self._run_phase(ONLINE_ONLY, duration_s, online=True, offline=False)
            if plan.prompts:
                self._run_phase(OFFLINE_ONLY, duration_s * plan.offline_only_share, online=False, offline=True)
        self._run_phase(TOGETHER, duration_s, online=bool(plan.requests), offline=bool(plan.prompts))

    def report(self, partial: bool) -> Report:
        """What has been measured so far."""
        outcomes = {name: phase.outcome() for name, phase in self.phases.items()}
        return compose(self._facts(), outcomes, self._plan.slos, self._plan.baseline, partial, self._notes)

    def _run_phase(self, name: str, duration_s: float, online: bool, offline: bool) -> None:
        requests = self._requests if online else []
        self._progress.phase(name, len(requests), len(self._prompts) if offline else 0)
        numbers = iter(random.Random(f"{self._setup.seed}:order").random, None)
        order = make_offline_order(self._strategy.preset.offline_order, DEFAULT_UTILITY_RATIO, numbers)
        backlog = Backlog(self._prompts, self._encoder, self._maker.salted("offline"), self._max_context, order)
        rate = self._strategy.preset.offline_rate(self._strategy.offline_qps)
        executor = VirtualExecutor(self._setup, backlog if offline else None, rate)
        phase = VirtualPhase(
            executor,
            requests,
            self._maker.salted("online"),
            len(self._prompts) if offline else 0,
            duration_s,
            self._tell,
        )
        self.phases[name] = phase
        phase.run(self._plan.drain and name == TOGETHER)

    def _tell(self, phase: VirtualPhase) -> None:
        if phase.executor.num_steps % STEPS_PER_PROGRESS == 0:
            self._progress.online(len(phase.records), phase.num_online_finished, phase.num_online_failed)
            self._progress.offline(phase.num_offline_finished, len(self._prompts))

    def _facts(self) -> RunFacts:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return self._plan.facts(date, self._url, self._plan.model or "", self._max_context, "token ids", True)
