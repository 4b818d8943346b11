"""`slackwater status`: what a stack's processes say about themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from services.local.commands.status.slo_text import slo_text
from services.local.stack.data_dir import StackFile, is_alive
from services.local.stack.readiness import PROFILER, ping_all
from services.local.stack.stack_bus import bus_at, stack_on
from shared.bus import Bus
from shared.errors import NoResponderError, StackError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.budgets import BudgetRecord
from shared.protocol.messages import ExecutorInfo, Heartbeat, ServiceStatus
from shared.protocol.slo_status import SloReport, SloStatus
from shared.scheduling.kv.policy import KV_POLICIES

ANSWER_S = 1.0
HEARTBEAT_S = 2.5  # two heartbeats and a half
OFFLINE_QUEUE = "offline-queue"
GATEWAY = "gateway"
POOL_FIGURES = ("waiting", "running", "batches")  # of the offline-queue's details
GATEWAY_FIGURES = ("waiting_requests", "refused_requests")  # of the gateway's


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process. ``pid`` is None between a crash and the next start."""

    name: str
    pid: int | None
    health: str  # "ok", or what is wrong
    restarts: int | None  # None where another machine's supervisor knows
    details: Details


class Status(msgspec.Struct, frozen=True):
    """What ``status --json`` prints. ``queues`` sums the executors and adds the offline pool's own figures and the
    gateway's."""

    url: str | None
    nats: str
    model: str | None
    ready: bool | None
    processes: list[ProcessStatus]
    executors: list[Heartbeat]
    budgets: list[BudgetRecord]  # of a step, by profile key
    slos: list[SloStatus]  # how they are kept, by profile key; empty where the stack has none
    queues: Details


async def read_status(data_dir: Path, nats: str | None) -> Status:
    """Ask the stack of the data directory, or whoever is on the given bus. Raises StackError where none answers."""
    stack = stack_on(data_dir, nats)
    url = nats or (stack.nats_url if stack else "")
    async with bus_at(url, "status") as bus:
        async with asyncio.TaskGroup() as group:
            pinging = group.create_task(ping_all(bus, ANSWER_S))
            beating = group.create_task(_heartbeats(bus))
            budgeting = group.create_task(_budgets(bus))
        answers, executors = pinging.result(), beating.result()
        slos = await slo_statuses(bus) if PROFILER in answers else []
    if not answers and stack is None:
        raise StackError(f"no service answers on {url}")
    processes = process_statuses(answers, stack)
    return Status(
        url=stack.http_url if stack else None,
        nats=url,
        model=stack.model if stack else next((beat.info.model for beat in executors), None),
        ready=stack.ready if stack else None,
        processes=processes,
        executors=executors,
        budgets=_current(budgeting.result(), executors),
        slos=slos,
        queues=queue_figures(executors, answers),
    )


def show(status: Status) -> None:
    """Tables on stdout."""
    console = Console()
    where = f"{status.url}  {status.model}  " if status.url else ""
    console.print(f"{where}bus {status.nats}", highlight=False, markup=False)
    console.print(_process_table(status.processes))
    for beat in status.executors:
        console.print(_describe(beat), highlight=False, markup=False)
    for budget in status.budgets:
        idle = f", {budget.idle_budget_ms:g} ms without online requests" if budget.idle_budget_ms else ""
        line = f"budget     {budget.latency_budget_ms:g} ms a step{idle} ({budget.source})  {budget.profile_key}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for slo in status.slos:
        console.print(slo_text(slo, time.time()), highlight=False, markup=False, soft_wrap=True)
    console.print("queues")
    console.print(_queue_table(status.queues))


async def _heartbeats(bus: Bus) -> list[Heartbeat]:
    """The latest heartbeat of each registered executor that lives, by executor id."""
    beats: dict[str, Heartbeat] = {}
    registered = {entry.key for entry in await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).entries()}
    complete = asyncio.Event()

    async def on_heartbeat(beat: Heartbeat) -> None:
        beats[beat.info.executor_id] = beat
        if registered <= beats.keys():
            complete.set()

    subscription = await bus.subscribe(subjects.HEARTBEATS, Heartbeat, on_heartbeat)
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await complete.wait()
    except TimeoutError:
        pass  # one is gone or starting: the others are shown
    finally:
        await subscription.stop()
    return [beats[executor_id] for executor_id in sorted(beats)]


async def _budgets(bus: Bus) -> list[BudgetRecord]:
    entries = await (await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)).entries()
    return sorted((entry.value for entry in entries if entry.value), key=lambda budget: budget.profile_key)


def _current(budgets: Iterable[BudgetRecord], executors: Iterable[Heartbeat]) -> list[BudgetRecord]:
    """Not those that executors of an earlier time have left."""
    keys = {beat.info.profile_key for beat in executors}
    return [budget for budget in budgets if budget.profile_key in keys]


async def slo_statuses(bus: Bus) -> list[SloStatus]:
    """How the profiler says that SLOs are kept; empty where none answers."""
    try:
        return (await bus.request(subjects.SLO_STATUS, {}, SloReport, ANSWER_S)).executors
    except NoResponderError:
        return []


def process_statuses(answers: dict[str, ServiceStatus], stack: StackFile | None) -> list[ProcessStatus]:
    """Those of the stack in starting order, and whoever else is on the bus."""
    shown = []
    if stack is not None:
        shown.append(ProcessStatus("supervisor", stack.supervisor_pid, "ok", 0, {}))
        for name, entry in stack.processes.items():
            answer = answers.get(name)
            health = answer.health if answer else _health_without_answer(name, entry.pid)
            details = answer.details if answer else {}
            shown.append(ProcessStatus(name, entry.pid, health, max(0, entry.starts - 1), details))
    known = {process.name for process in shown}
    others = sorted((answer for name, answer in answers.items() if name not in known), key=lambda answer: answer.name)
    return shown + [ProcessStatus(answer.name, answer.pid, answer.health, None, answer.details) for answer in others]


def _health_without_answer(name: str, pid: int | None) -> str:
    if pid is None or not is_alive(pid):
        return "not running"
    return "ok" if name == "nats-server" else "no answer"  # the bus itself: this question went through it


def queue_figures(executors: Iterable[Heartbeat], answers: Mapping[str, ServiceStatus]) -> Details:
    """The executors' sums, the offline pool's own figures as ``pool_...``, and whom the gateway turned away."""
    beats = list(executors)
    on_executors: Details = {
        name: sum(getattr(beat, name) for beat in beats)
        for name in ("online_waiting", "online_running", "offline_waiting", "offline_running")
    }
    pool = answers[OFFLINE_QUEUE].details if OFFLINE_QUEUE in answers else {}
    front = answers[GATEWAY].details if GATEWAY in answers else {}
    return (
        on_executors
        | {f"pool_{name}": value for name, value in pool.items() if name in POOL_FIGURES}
        | {f"gateway_{name}": value for name, value in front.items() if name in GATEWAY_FIGURES}
    )


def _process_table(processes: list[ProcessStatus]) -> Table:
    table = Table("process", "pid", "health", "restarts", box=None, header_style="bold")
    for process in processes:
        style = "" if process.health == "ok" else "red"
        pid, restarts = process.pid or "", "" if process.restarts is None else process.restarts
        table.add_row(process.name, str(pid), process.health, str(restarts), style=style)
    return table


def _describe(beat: Heartbeat) -> str:
    info, counters = beat.info, beat.counters
    return (
        f"{info.executor_id}  {info.engine} on {info.device}{draining_text(beat)}\n"
        f"  online   {beat.online_running} running, {beat.online_waiting} waiting, "
        f"{counters.finished_online} finished, {counters.online_tokens} tokens\n"
        f"  offline  {beat.offline_running} running, {beat.offline_waiting} waiting, "
        f"{counters.finished_offline} finished, {counters.offline_tokens} tokens\n"
        f"  steps    {counters.steps}: {counters.steps_planned} planned, {counters.steps_local} local, "
        f"{counters.steps_idle} from idle\n"
        f"  blocks   {beat.num_free_blocks} of {info.num_blocks} free{_describe_sharing(beat)}"
    )


def draining_text(beat: Heartbeat) -> str:
    """What stands behind an executor's name."""
    return " (drained)" if beat.is_drained else " (drains)" if beat.draining else ""


def _describe_sharing(beat: Heartbeat) -> str:
    counters = beat.counters
    kv_policy = KV_POLICIES.get(beat.info.kv_policy)
    if kv_policy is None or not kv_policy.shares_blocks:
        return ""
    return (
        f", {counters.pauses} times an offline request was paused, {counters.checkpointed_slots} slots to the host, "
        f"{counters.restored_slots} back"
    )


def _queue_table(queues: Details) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in queues.items():
        table.add_row(name.replace("_", " "), str(value))
    return table
