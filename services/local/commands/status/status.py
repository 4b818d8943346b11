"""What a stack's processes say about themselves."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from services.local.commands.parameters import BusOptions
from services.local.stack.data_dir import StackFile, bus_at, is_alive, stack_on
from services.local.stack.readiness import PROFILER, ping_all
from shared.bus import Bus
from shared.errors import NoResponderError, StackError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.budgets import BudgetRecord, SloReport, SloStatus
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.services import ServiceStatus

ANSWER_S = 1.0
HEARTBEAT_S = 2.5  # two heartbeats and a half
EXECUTOR_FIGURES = ("online_waiting", "online_running", "offline_waiting", "offline_running")
OWN_FIGURES = {  # of services' details, and as what they are shown
    "offline-queue": ("pool", ("waiting", "running", "batches")),
    "gateway": ("gateway", ("waiting_requests", "refused_requests")),
}


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


async def read_status(options: BusOptions) -> Status:
    """Ask the stack of the data directory, or whoever is on the given bus. Raises StackError where none answers."""
    stack, url = stack_on(options.data_dir, options.nats)
    async with bus_at(url, "status") as bus:
        async with asyncio.TaskGroup() as group:
            pinging = group.create_task(ping_all(bus, ANSWER_S))
            beating = group.create_task(_heartbeats(bus))
            budgeting = group.create_task(_budgets(bus))
        answers, executors = pinging.result(), beating.result()
        slos = await slo_statuses(bus) if PROFILER in answers else []
    if not answers and stack is None:
        raise StackError(f"no service answers on {url}")
    keys = {beat.info.profile_key for beat in executors}  # budgets of others are left from an earlier time
    return Status(
        url=stack.http_url if stack else None,
        nats=url,
        model=stack.model if stack else next((beat.info.spec.model for beat in executors), None),
        ready=stack.ready if stack else None,
        processes=process_statuses(answers, stack),
        executors=executors,
        budgets=[each for each in budgeting.result() if each.profile_key in keys],
        slos=slos,
        queues=queue_figures(executors, answers),
    )


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
    with contextlib.suppress(TimeoutError):  # one is gone or starting: the others are shown
        await asyncio.wait_for(complete.wait(), HEARTBEAT_S)
    await subscription.stop()
    return [beats[executor_id] for executor_id in sorted(beats)]


async def _budgets(bus: Bus) -> list[BudgetRecord]:
    entries = await (await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)).entries()
    return sorted((entry.value for entry in entries if entry.value), key=lambda budget: budget.profile_key)


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


def queue_figures(beats: Sequence[Heartbeat], answers: Mapping[str, ServiceStatus]) -> Details:
    """The executors' sums, the offline pool's own figures as ``pool_...``, and whom the gateway turned away."""
    figures: Details = {name: sum(getattr(beat, name) for beat in beats) for name in EXECUTOR_FIGURES}
    for service, (prefix, names) in OWN_FIGURES.items():
        details = answers[service].details if service in answers else {}
        figures |= {f"{prefix}_{name}": details[name] for name in names if name in details}
    return figures
