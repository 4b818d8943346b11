"""What a stack's processes say about themselves when they are asked, and an executor's word on taking requests."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from shared.bus import Bus
from shared.bus.connection import OPERATION_TIMEOUT_S
from shared.cancellation import within
from shared.errors import BusError, NoResponderError, first_of
from shared.openai.objects import is_well_formed
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat, SetDraining
from shared.protocol.handover import SetRole
from shared.protocol.profiling.budgets import BudgetRecord, SloReport, SloStatus
from shared.protocol.services import ServiceStatus, is_queue_at_work
from shared.scheduling.placement.role import Role
from shared.watch.stack_watch import StackView

T = TypeVar("T")

PING_WAIT_S = 0.25
ANSWER_S = 1.0
EXECUTOR_FIGURES = ("online_waiting", "online_running", "offline_waiting", "offline_running")
GATEWAY = "gateway"  # name of each
ORDER_FIGURES = ("output_length_error", "compute_density")  # of an offline order that goes by them
POOL_FIGURES = ("waiting", "running", "batches")  # of offline-queues' details
GATEWAY_FIGURES = ("waiting_requests", "refused_requests")  # of a gateway's


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process. ``pid`` is None between a crash and the next start."""

    name: str
    pid: int | None
    health: str  # "ok", or what is wrong
    restarts: int | None  # None where another machine's supervisor knows
    details: Details


class Status(msgspec.Struct, frozen=True):
    """What ``status --json`` prints. ``queues`` has the sums over executors, over offline pools and over gateways."""

    url: str | None
    nats: str | None  # None where a gateway was asked
    model: str | None
    ready: bool | None
    processes: list[ProcessStatus]
    executors: list[Heartbeat]
    budgets: list[BudgetRecord]  # of a step, by profile key
    slos: list[SloStatus]  # how they are kept, by profile key; empty where the stack has none
    queues: Details


class StackReport(msgspec.Struct, frozen=True):
    """A moment of a stack: what its processes answer, and what was seen of it."""

    status: Status
    view: StackView


async def ask_stack(bus: Bus, look: Callable[[], StackView]) -> StackReport:
    """Everybody on the bus is asked; ``look`` says what has been seen there by then. Takes ANSWER_S. Raises
    BusError."""
    try:
        async with asyncio.TaskGroup() as group:
            pinging = group.create_task(ping_each(bus, ANSWER_S))
            budgeting = group.create_task(_records(bus, subjects.BUDGETS_BUCKET, BudgetRecord))
            keeping = group.create_task(slo_report(bus))
    except ExceptionGroup as errors:
        raise first_of(errors, BusError) or errors from None
    answers, view = pinging.result(), look()
    budgets = sorted(budgeting.result().values(), key=lambda budget: budget.profile_key)
    beats = [executor.beat for executor in view.executors]
    keys = view.profile_keys  # what is told of others is left from an earlier time
    status = Status(
        url=None,
        nats=None,
        model=", ".join(sorted({beat.info.spec.model for beat in beats})) or None,
        ready=None,
        processes=[
            ProcessStatus(answer.name, answer.pid, answer.health, None, answer.details)
            for answer in sorted(answers, key=lambda answer: (answer.name, answer.started_s, answer.pid))
        ],
        executors=beats,
        budgets=[each for each in budgets if each.profile_key in keys],
        slos=[each for each in keeping.result().executors if each.profile_key in keys],
        queues=queue_figures(beats, answers),
    )
    return StackReport(status, view)


async def ping_all(bus: Bus, wait_s: float = PING_WAIT_S) -> dict[str, ServiceStatus]:
    """Every service on the bus that answers within ``wait_s``, by name. Raises BusError."""
    return {answer.name: answer for answer in await ping_each(bus, wait_s)}


async def ping_each(bus: Bus, wait_s: float = PING_WAIT_S) -> list[ServiceStatus]:
    """As ``ping_all``, also those that have the same name. Raises BusError."""
    return await bus.gather(subjects.PING, {}, ServiceStatus, wait_s)


async def slo_report(bus: Bus) -> SloReport:
    """How the profiler says that SLOs are kept; empty where none answers. Raises BusError."""
    try:
        return await bus.request(subjects.SLO_STATUS, {}, SloReport, ANSWER_S)
    except NoResponderError:
        return SloReport([], [])


async def set_draining(bus: Bus, executor_id: str, draining: bool) -> Heartbeat:
    """Whether it takes requests from now on; what it says to that. Raises NoResponderError that names those that there
    are, and BusError."""
    return await _order(bus, executor_id, subjects.drain, SetDraining(draining))


async def set_role(bus: Bus, executor_id: str, role: Role) -> Heartbeat:
    """Of which pool it is from now on. As ``set_draining``."""
    return await _order(bus, executor_id, subjects.role, SetRole(role))


def queue_figures(beats: Sequence[Heartbeat], answers: Sequence[ServiceStatus]) -> Details:
    """The executors' sums, those of the offline pools as ``pool_...``, and of whom gateways turned away. What an
    offline order goes by is told where there is one pool."""
    figures: Details = {name: sum(getattr(beat, name) for beat in beats) for name in EXECUTOR_FIGURES}
    pools = [answer.details for answer in answers if is_queue_at_work(answer.name)]
    gateways = [answer.details for answer in answers if answer.name == GATEWAY]
    figures |= _sums("pool", pools, POOL_FIGURES)
    if len(pools) == 1:
        figures |= {f"pool_{name}": pools[0][name] for name in ORDER_FIGURES if name in pools[0]}
    return figures | _sums("gateway", gateways, GATEWAY_FIGURES)


def _sums(prefix: str, all_details: Sequence[Details], names: Sequence[str]) -> Details:
    """None of what nobody tells."""
    counts = {name: [count for details in all_details if isinstance(count := details.get(name), int)] for name in names}
    return {f"{prefix}_{name}": sum(each) for name, each in counts.items() if each}


def figure_text(value: float | str | None) -> str:
    """One of a service's figures, as people read it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


async def _order(bus: Bus, executor_id: str, subject_of: subjects.SubjectOf, order: SetDraining | SetRole) -> Heartbeat:
    try:
        if not is_well_formed(executor_id):
            raise NoResponderError(executor_id)
        return await bus.request(subject_of(executor_id), order, Heartbeat)
    except NoResponderError as error:
        known = ", ".join(sorted(await _records(bus, subjects.EXECUTORS_BUCKET, ExecutorInfo))) or "none"
        raise NoResponderError(f"no executor {executor_id} answers; registered: {known}") from error


async def _records(bus: Bus, bucket: str, record_type: type[T]) -> dict[str, T]:
    """All of the bucket, by key. Raises BusError, also where the bus stays away: whoever asks is to be told."""

    async def read() -> dict[str, T]:
        entries = await (await bus.bucket(bucket, record_type)).entries()
        return {entry.key: entry.value for entry in entries if entry.value is not None}

    try:
        return await within(OPERATION_TIMEOUT_S, read())
    except TimeoutError as error:
        raise BusError(f"the bus does not tell of its bucket {bucket}") from error
