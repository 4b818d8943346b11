"""What a stack's services say when they are asked; nobody asks while no page is open."""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from services.gateway.dashboard.parts import ALL
from services.gateway.dashboard.restarts import Restarts
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.profiling.budgets import SloStatus
from shared.protocol.profiling.slo_profile import Knob, SloProfileRecord, slo_profile_key
from shared.protocol.services import ServiceStatus, is_queue_at_work, queue_name
from shared.watch.stack_status import ORDER_FIGURES, ping_each, slo_report

SILENT_S = 5.0  # without an answer; on a busy machine one comes late now and then
EXPECTED = ("predictor", "profiler")  # beside offline-queues; gateway and executors are seen without asking

Process = tuple[str, float, int]  # name, start, pid: several may have one name (gateways, a standby), and one pid


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """An offline-queue's. ``order``: what the offline order says of what waits, as far as it goes by that."""

    preset: str | None = None
    order: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StackAnswers:
    """Of the last seconds. ``queues`` are by model, ``slos`` and ``profiles`` by profile key; ``unwell`` is in words;
    ``up`` says who is well, ``restarts`` how often each began anew, by service: of several that have one name, whether
    all are, and all together."""

    queues: dict[str, QueueAnswer] = field(default_factory=dict)
    unwell: list[str] = field(default_factory=list)
    slos: dict[str, SloStatus] = field(default_factory=dict)
    profiles: dict[str, SloProfileRecord] = field(default_factory=dict)
    up: dict[str, bool] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    processes: list[ServiceStatus] = field(default_factory=list)  # those that answered lately

    def of_model(self, model: str) -> QueueAnswer:
        """By its name in the stack. Of all (ALL) the presets together, and what the order of one model says."""
        if model != ALL:
            return self.queues.get(model, QueueAnswer())
        presets = dict.fromkeys(queue.preset for queue in self.queues.values() if queue.preset is not None)
        alone = next(iter(self.queues.values())) if len(self.queues) == 1 else QueueAnswer()
        return QueueAnswer(", ".join(presets) or None, alone.order)


class StackQuestions:
    """Asks whoever is on the bus. ``ask`` is not to be called twice at a time."""

    def __init__(self, bus: Bus, clock: Clock, models: Collection[str]) -> None:
        """``models``: by their names in the stack; each is to have an offline-queue."""
        self._bus = bus
        self._expected = (*(queue_name(model, len(models) > 1) for model in models), *EXPECTED)
        self._clock = clock
        self._heard: dict[Process, tuple[float, ServiceStatus]] = {}  # when, and what it said
        self._profiles: dict[str, SloProfileRecord] = {}  # by key in their bucket
        self._restarts = Restarts()

    async def ask(self) -> StackAnswers:
        """Takes as long as the slowest answer may. Never fails: what cannot be asked is said to be unwell."""
        try:
            report = await slo_report(self._bus)
            profiles = {status.profile_key: await self._profile(status) for status in report.executors}
            statuses = await ping_each(self._bus)
        except BusError:
            return self._without_bus()
        except msgspec.DecodeError as error:
            return StackAnswers(unwell=[f"a service of another version answers: {error}"])
        now_s = self._clock.monotonic_s()
        self._restarts.heard(statuses, now_s)
        self._heard |= {_process(status): (now_s, status) for status in statuses}
        self._heard = {each: heard for each, heard in self._heard.items() if heard[0] > now_s - SILENT_S}
        processes = [status for _, (_, status) in sorted(self._heard.items())]
        if not (processes or report.executors):  # not even this gateway, which is asked over the bus like all others
            return self._without_bus()
        queues = [status.details for status in processes if is_queue_at_work(status.name)]
        names = dict.fromkeys(status.name for status in processes)
        ill = {status.name for status in processes if not status.is_well}
        return StackAnswers(
            queues={str(told.get("model", "")): _queue_answer(told) for told in queues},
            unwell=self._unwell(processes),
            slos={status.profile_key: status for status in report.executors},
            profiles={key: profile for key, profile in profiles.items() if profile is not None},
            up=dict.fromkeys(self._expected, False) | {name: name not in ill for name in names},
            restarts=self._restarts.counts,
            processes=processes,
        )

    def _without_bus(self) -> StackAnswers:
        unwell = "the bus does not answer: what is shown is old"
        return StackAnswers(unwell=[unwell], restarts=self._restarts.counts)

    async def _profile(self, status: SloStatus) -> SloProfileRecord | None:
        """Read once, until there is a newer one."""
        if status.profiled_at_s is None:
            return None
        key = slo_profile_key(status.profile_key, status.slos, Knob.BUDGET_MS)
        known = self._profiles.get(key)
        if known is None or known.profiled_at_s != status.profiled_at_s:
            bucket = await self._bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
            with contextlib.suppress(NotFoundOnBusError):
                known = (await bucket.get(key)).value
            if known is not None:
                self._profiles[key] = known
        return known

    def _unwell(self, processes: Sequence[ServiceStatus]) -> list[str]:
        names = [status.name for status in processes]
        silent = [f"{name} does not answer" for name in self._expected if name not in names]
        ill = [f"{_told_apart(status, names)}: {status.health}" for status in processes if not status.is_well]
        return silent + ill


def _process(status: ServiceStatus) -> Process:
    return status.name, status.started_s, status.pid


def _told_apart(status: ServiceStatus, names: Sequence[str]) -> str:
    """By the name, and the pid where others have that name too."""
    return status.name if names.count(status.name) == 1 else f"{status.name} (pid {status.pid})"


def _queue_answer(told: Details) -> QueueAnswer:
    preset = told.get("preset")
    order = {name: value for name in ORDER_FIGURES if isinstance(value := told.get(name), float)}
    return QueueAnswer(None if preset is None else str(preset), order)
