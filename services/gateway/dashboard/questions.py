"""What a stack's services say when they are asked; nobody asks while no page is open."""

import contextlib
from dataclasses import dataclass, field

import msgspec

from services.gateway.dashboard.restarts import Restarts
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.budgets import SloStatus
from shared.protocol.services import ServiceStatus
from shared.protocol.slo_profile import Knob, SloProfileRecord, slo_profile_key
from shared.watch.stack_status import ORDER_FIGURES, ping_each, slo_report

SILENT_S = 5.0  # without an answer; on a busy machine one comes late now and then
OFFLINE_QUEUE = "offline-queue"
EXPECTED = (OFFLINE_QUEUE, "predictor", "profiler")  # gateway and executors are seen without asking


@dataclass(frozen=True, slots=True)
class StackAnswers:
    """Of the last seconds. ``slos`` and ``profiles`` are by profile key; ``order``: what the offline order says of
    what waits, as far as it goes by that; ``unwell`` is in words; ``up`` says who is well, ``restarts`` how often each
    began anew, by service."""

    preset: str | None = None
    order: dict[str, float] = field(default_factory=dict)
    unwell: list[str] = field(default_factory=list)
    slos: dict[str, SloStatus] = field(default_factory=dict)
    profiles: dict[str, SloProfileRecord] = field(default_factory=dict)
    up: dict[str, bool] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    processes: list[ServiceStatus] = field(default_factory=list)  # those that answered lately


class StackQuestions:
    """Asks whoever is on the bus. ``ask`` is not to be called twice at a time."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._heard: dict[str, tuple[float, ServiceStatus]] = {}  # by service: when, and what it said
        self._profiles: dict[str, SloProfileRecord] = {}  # by key in their bucket
        self._restarts = Restarts()

    async def ask(self) -> StackAnswers:
        """Takes as long as the slowest answer may. Never fails: what cannot be asked is said to be unwell."""
        try:
            report = await slo_report(self._bus)
            profiles = {status.profile_key: await self._profile(status, report.slos) for status in report.executors}
            statuses = await ping_each(self._bus)
        except BusError:
            unwell = "the bus does not answer: what is shown is old"
            return StackAnswers(unwell=[unwell], restarts=self._restarts.counts)
        except msgspec.DecodeError as error:
            return StackAnswers(unwell=[f"a service of another version answers: {error}"])
        now_s = self._clock.monotonic_s()
        self._restarts.heard(statuses)
        self._heard |= {status.name: (now_s, status) for status in statuses}
        self._heard = {name: heard for name, heard in self._heard.items() if heard[0] > now_s - SILENT_S}
        queue = self._heard.get(OFFLINE_QUEUE)
        told = queue[1].details if queue else {}
        preset = told.get("preset")
        return StackAnswers(
            preset=None if preset is None else str(preset),
            order={name: value for name in ORDER_FIGURES if isinstance(value := told.get(name), float)},
            unwell=self._unwell(),
            slos={status.profile_key: status for status in report.executors},
            profiles={key: profile for key, profile in profiles.items() if profile is not None},
            up=dict.fromkeys(EXPECTED, False) | {name: self._is_well(name) for name in sorted(self._heard)},
            restarts=self._restarts.counts,
            processes=[status for _, (_, status) in sorted(self._heard.items())],
        )

    def _is_well(self, name: str) -> bool:
        return self._heard[name][1].health == "ok"

    async def _profile(self, status: SloStatus, slos: list[str]) -> SloProfileRecord | None:
        """Read once, until there is a newer one."""
        if status.profiled_at_s is None:
            return None
        key = slo_profile_key(status.profile_key, slos, Knob.BUDGET_MS)
        known = self._profiles.get(key)
        if known is None or known.profiled_at_s != status.profiled_at_s:
            bucket = await self._bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
            with contextlib.suppress(NotFoundOnBusError):
                known = (await bucket.get(key)).value
            if known is not None:
                self._profiles[key] = known
        return known

    def _unwell(self) -> list[str]:
        silent = [f"{name} does not answer" for name in EXPECTED if name not in self._heard]
        ill = [f"{name}: {status.health}" for name, (_, status) in sorted(self._heard.items()) if status.health != "ok"]
        return silent + ill
