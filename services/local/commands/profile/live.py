"""``slackwater profile`` of a running stack: its SLO profiles, and with --live a search by test runs on it."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from rich.console import Console

from loadgen.cli import is_shown
from loadgen.client.openai_client import OpenAIClient
from loadgen.replay import ReplayPlan
from loadgen.stopping import run_until_signalled
from services.local.commands.parameters import BusOptions
from services.profiler.slo.cli import SearchOptions, trial_progress_on
from services.profiler.slo.keeper import LIVE
from services.profiler.slo.live import LiveTrials, search_live
from services.profiler.slo.search import SloSearch
from services.profiler.slo.workload import executor_facts, workload_facts
from shared.bus import Bus
from shared.client_key import client_key
from shared.clock import SystemClock
from shared.errors import NoResponderError, NotFoundOnBusError, StackError
from shared.process.file_limit import raise_file_limit
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport, SloState
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.protocol.profiling.slo_profile import Knob, ProfileReply, ProfileRequest, SloProfileRecord, slo_profile_key
from shared.protocol.services import is_queue_at_work
from shared.watch.follower import StackFollower
from shared.watch.stack_status import ping_all, slo_report
from shared.watch.stack_watch import StackWatch

ASKER = "profile"  # its name on the bus
SEARCH_S = 3600.0  # a search runs the recorded workload a dozen times, simulated
REQUEST_TIMEOUT_S = 600.0
PING_S = 1.0


async def newest_profiles(stack: BusOptions) -> list[SloProfileRecord]:
    """The latest of each kind of executor, by profile key. Raises StackError where there is none, which says how far
    the stack is."""
    async with stack.bus(ASKER) as bus:
        bucket = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        found = [entry.value for entry in await bucket.entries() if entry.value is not None]
        if not found:
            raise StackError(f"the stack has not searched for a latency budget yet: {how_far(await slo_report(bus))}")
    newest = {record.profile_key: record for record in sorted(found, key=lambda record: record.profiled_at_s)}
    return [newest[profile_key] for profile_key in sorted(newest)]


def how_far(report: SloReport) -> str:
    """What has to come before the first search; of each kind of executor."""
    if not report.slos:
        return "start it with SLOs to keep (--slo)"
    kinds = [
        f"{status.profile_key}: {status.state}" + (f" ({status.note})" if status.note else "")
        for status in report.executors
    ]
    if any(status.state is SloState.RECORDING for status in report.executors):
        kinds.append("--now searches with what there is")
    return "; ".join(kinds) or "no executor is ready"


async def profile_now(stack: BusOptions, slos: Sequence[str]) -> list[SloProfileRecord]:
    """Let the stack's profiler search anew; without ``slos``, for those that it keeps. Raises StackError."""
    async with stack.bus(ASKER) as bus:
        try:
            reply = await bus.request(subjects.PROFILE, ProfileRequest(slos=list(slos)), ProfileReply, SEARCH_S)
        except NoResponderError as error:
            raise StackError("no profiler answers on the stack's bus") from error
    if reply.error:
        raise StackError(f"the profiler did not search: {reply.error}")
    return reply.records


async def profile_live(
    stack: BusOptions, url: str, plan: ReplayPlan, searching: SearchOptions, console: Console
) -> tuple[SloProfileRecord, signal.Signals | None]:
    """What was found, and published with its budget; or what is known when a signal came, and which.

    Raises StackError for a stack whose budget cannot be searched for, LoadgenError for a workload or a server that
    cannot be used."""
    search = SloSearch(searching.slos(), Knob.BUDGET_MS, searching.precision)
    async with stack.bus(ASKER) as bus:
        if not any(map(is_queue_at_work, await ping_all(bus, PING_S))):
            raise StackError("no offline-queue answers: without one there is no offline work to find room for")
        info = await _executor(bus)
        if not info.strategy.uses_latency_budget:
            raise StackError(f"the stack runs preset {info.strategy.preset}, which has no latency budget")
        raise_file_limit()
        async with OpenAIClient(url, REQUEST_TIMEOUT_S, client_key(os.environ)) as client:
            with trial_progress_on(console, is_shown(searching.progress)) as progress:
                trials = LiveTrials(bus, client, plan, info, progress)
                stopped_by = await run_until_signalled(search_live(search, trials))
            for note in trials.notes:
                console.print(f"note: {note}", markup=False)
        return await _record(bus, search, plan, info, is_whole=stopped_by is None), stopped_by


async def undo_live(stack: BusOptions) -> list[BudgetRecord]:
    """The budgets that hold from now on in place of those that live searches had found. Raises StackError where there
    is none to replace."""
    async with stack.bus(ASKER) as bus:
        budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        entries = [(each.value, each.revision) for each in await budgets.entries() if each.value is not None]
        found = [each for each in entries if each[0].before is not None and each[0].source is BudgetSource.SLO]
        if not found:
            raise StackError("the stack has no budget that a search by --live has found")
        for budget, revision in found:
            await budgets.update(budget.profile_key, budget.without_live_searches, revision)
    return [budget.without_live_searches for budget, _ in found]


async def _record(
    bus: Bus, search: SloSearch, plan: ReplayPlan, info: ExecutorInfo, is_whole: bool
) -> SloProfileRecord:
    """Published where the search came to its end."""
    lengths = [(each.num_prompt_tokens, each.max_tokens) for each in plan.prompts if each.num_prompt_tokens is not None]
    facts = workload_facts(plan.trace or "", plan.requests, plan.scaling.duration_s, plan.prompt_file or "", lengths)
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    revision = 0  # where none is published yet
    with contextlib.suppress(NotFoundOnBusError):
        revision = (await models.get(info.profile_key)).revision
    run = facts, LIVE, time.time(), revision, "asked"
    record = search.record(info.profile_key, *run, executor_facts(info))
    if is_whole:
        profiles = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        await profiles.put(slo_profile_key(info.profile_key, record.slos, record.knob), record)
    return record


async def _executor(bus: Bus) -> ExecutorInfo:
    """One for all of its kind. Raises StackError for a stack with executors of several kinds, or none."""
    entries = await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).entries()
    registered = [entry.value for entry in entries if entry.value is not None]
    infos = {info.profile_key: info for info in registered}
    if len(infos) > 1:  # one may be of an executor that ended without a sign-off
        alive = await _alive(bus)
        infos = {info.profile_key: info for info in registered if info.epoch in alive}
    if len(infos) != 1:
        kinds = ", ".join(sorted(infos)) or "none"
        raise StackError(f"a search needs executors of one kind, with one budget; there are: {kinds}")
    return next(iter(infos.values()))


async def _alive(bus: Bus) -> set[str]:
    """The epochs of the executors that beat; membership only."""
    watch, clock = StackWatch(), SystemClock()
    async with StackFollower.following(bus, watch, clock) as follower:
        await follower.wait_for_beats(num_beats=1)
    return {executor.beat.info.epoch for executor in watch.view(clock.monotonic_s()).executors}
