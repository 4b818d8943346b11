"""Test runs on a running stack: its budget is set, and the workload is replayed through its gateway."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError, WorkloadError
from loadgen.progress import RenamedProgress, ReplayProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.outcome import TOGETHER
from services.profiler.slo.holds import RENEW_S
from services.profiler.slo.search import ONLINE_ONLY, SloSearch, Span, TrialOutcome
from shared.bus import Bucket, Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.latency.features import BatchFeatures
from shared.latency.model import cheapest_step_ms
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.measurements import LatencySample
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

MODEL_S = 60.0  # for a latency model to be known: without one no budget holds anything


@dataclass
class LiveTrials:
    """Under a budget that is set for the time of each run; the other work of the stack is part of what it measures.

    Use it within ``holding_budget``, which puts the old budget back unless another was ``adopt``-ed. ``info``: any of
    the stack's executors, all of one kind. Raises WorkloadError for a plan that lacks online or offline requests.
    """

    bus: Bus
    client: OpenAIClient
    plan: ReplayPlan
    info: ExecutorInfo
    progress: ReplayProgress
    notes: list[str] = field(init=False, default_factory=list)  # what online requests failed of, by run
    _longest_ms: float = field(init=False, default=0.0)  # predicted for any step since it was set to 0
    _unbounded: tuple[float, TrialOutcome] | None = field(init=False, default=None)  # the span's run, from where on
    _adopted: bool = field(init=False, default=False)
    _idle_budget_ms: float = field(init=False)
    _budgets: Bucket[BudgetRecord] = field(init=False)
    _before: BudgetRecord | None = field(init=False, default=None)
    _held: tuple[BudgetRecord, int] | None = field(init=False, default=None)  # with its revision
    _setting: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if not self.plan.requests or not self.plan.prompts:
            raise WorkloadError("a search is about online requests beside offline ones: give --online and --offline")
        self.plan = replace(self.plan, mark_offline=True)
        self._idle_budget_ms = self.info.strategy.idle_budget_ms
        self._tuned = asyncio.Event()
        self._tuning = Tuning(self.bus, self._tuned.set)

    @asynccontextmanager
    async def holding_budget(self) -> AsyncIterator[None]:
        """Follow the executors' steps; put the budget back at the end. Raises ServerError without a latency model."""
        self._budgets = await self.bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        with suppress(NotFoundOnBusError):
            before = (await self._budgets.get(self.info.profile_key)).value
            if before is not None and before.source is BudgetSource.PROFILING:
                before = before.before  # of a search that is gone
            self._before = before
            if before is not None:
                self._idle_budget_ms = before.idle_budget_ms
        following = asyncio.create_task(self._tuning.run(), name="tuning")
        renewing = asyncio.create_task(self._renew(), name="renewing the budget")
        samples = await self.bus.subscribe(subjects.LATENCY_SAMPLES, LatencySample, self._on_sample)
        try:
            await self._wait_for_model()
            yield
        finally:
            for each in (following, renewing):
                each.cancel()
            await asyncio.wait((following, renewing))
            await samples.stop()
            if not self._adopted:
                await self._put_back()

    async def run(self, value: float) -> TrialOutcome:
        """A replay of its own, with prompts of its own. Raises ServerError, BusError."""
        if self._unbounded is not None and value >= self._unbounded[0]:
            return self._unbounded[1]
        return await self._replay(value, "online only" if value == ONLINE_ONLY else f"budget {value:g} ms")

    async def span(self) -> Span:
        """By a run under the longest budget that makes sense: a step with all the tokens, requests and KV that the
        executor takes. What its longest step took by the latency model is the largest that makes a difference."""
        model = self._tuning.model(self.info.profile_key)
        lowest_ms = cheapest_step_ms(model)
        self._longest_ms = 0.0
        unbounded = await self._replay(model.predict_ms(fullest_step(self.info)), "nothing held back")
        span = Span(lowest_ms, max(lowest_ms, self._longest_ms))
        self._unbounded = span.highest, unbounded
        return span

    async def adopt(self, budget_ms: float) -> None:
        """From now on the stack's budget, as found for its SLOs."""
        await self._set(budget_ms, BudgetSource.SLO)
        self._adopted = True

    async def _wait_for_model(self) -> None:
        await self._set(ONLINE_ONLY, BudgetSource.PROFILING)
        try:
            async with asyncio.timeout(MODEL_S):
                while self._tuning.budget_ms(self.info.profile_key) is None:
                    await self._tuned.wait()
                    self._tuned.clear()
        except TimeoutError:
            raise ServerError(f"no latency model of {self.info.profile_key} was published in {MODEL_S:g} s") from None

    async def _on_sample(self, sample: LatencySample) -> None:
        if sample.profile_key == self.info.profile_key:
            predicted_ms = self._tuning.model(sample.profile_key).predict_ms(sample.shape)
            self._longest_ms = max(self._longest_ms, predicted_ms)

    async def _replay(self, budget_ms: float, name: str) -> TrialOutcome:
        await self._set(budget_ms, BudgetSource.PROFILING)
        plan = self.plan if budget_ms != ONLINE_ONLY else replace(self.plan, prompts=())
        runner = Replay(plan, self.client, RenamedProgress(self.progress, lambda _: name))
        await runner.prepare_and_run()
        self.notes += [f"{name}: {failure}" for failure in runner.online_failures()]
        await self._require_unchanged(budget_ms)
        return TrialOutcome.of(runner.outcomes()[TOGETHER])

    async def _renew(self) -> None:
        """So that the profiler knows that this search is there: see ``LiveHolds``."""
        while True:
            await asyncio.sleep(RENEW_S)
            check_cancelled()
            async with self._setting:
                if self._held is None:
                    continue
                budget, revision = self._held
                try:
                    self._held = budget, await self._budgets.update(self.info.profile_key, budget, revision)
                except ConflictError:  # it was changed: the run that measures under it will find that
                    self._held = None
                except BusError as error:
                    logger.warning("budget not renewed", extra={"why": str(error)})

    async def _require_unchanged(self, budget_ms: float) -> None:
        record = (await self._budgets.get(self.info.profile_key)).value
        if record is None or (record.latency_budget_ms, record.source) != (budget_ms, BudgetSource.PROFILING):
            now = "none" if record is None else f"{record.latency_budget_ms:g} ms ({record.source})"
            raise ServerError(
                f"the stack's budget was changed while a run measured under {budget_ms:g} ms; it is {now}"
            )

    async def _set(self, budget_ms: float, source: BudgetSource) -> None:
        profile_key, before = self.info.profile_key, self._before
        if before is not None and source is not BudgetSource.PROFILING:
            before = before.without_live_searches
        budget = BudgetRecord(profile_key, budget_ms, source, self._idle_budget_ms, before=before)
        async with self._setting:
            revision = await self._budgets.put(profile_key, budget)
            self._held = (budget, revision) if source is BudgetSource.PROFILING else None

    async def _put_back(self) -> None:
        """Where it is not another's by now."""
        record = (await self._budgets.get(self.info.profile_key)).value
        if record is None or record.source != BudgetSource.PROFILING:
            return
        if self._before is None:
            await self._budgets.delete(self.info.profile_key)
        else:
            await self._budgets.put(self.info.profile_key, self._before)


async def search_live(search: SloSearch, trials: LiveTrials) -> None:
    """To the end, and the stack keeps what was found: where nothing was, no offline work runs beside online requests.
    Where it is interrupted, the stack has its old budget and ``search`` holds what is known so far."""
    async with trials.holding_budget():
        search.tell(ONLINE_ONLY, await trials.run(ONLINE_ONLY))
        if search.reachable:
            search.open(await trials.span())
        while (value := search.next_value()) is not None:
            search.tell(value, await trials.run(value))
        await trials.adopt(search.value or ONLINE_ONLY)


def fullest_step(info: ExecutorInfo) -> BatchFeatures:
    """As many tokens and as much KV as a step of the executor can hold: at least half of it a chunk at the end of the
    longest prompt, and the rest decodes over what is left of the KV cache."""
    features = BatchFeatures()
    num_decodes = min(info.max_num_seqs, max(1, info.max_num_batched_tokens // 2)) - 1
    chunk = min(info.max_num_batched_tokens - num_decodes, info.spec.max_model_len)
    features.add_prefill(chunk, info.spec.max_model_len - chunk)
    capacity = info.spec.num_blocks * info.spec.block_size
    for _ in range(num_decodes):
        features.add_decode(max(1, min(info.spec.max_model_len, capacity // num_decodes)))
    return features
