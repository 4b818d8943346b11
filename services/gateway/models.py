"""The models behind one gateway: which of them a request is for, who runs it, and what of it is under way."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from services.gateway.access.admission import Admission, online_first
from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.online_tracker import OnlineTracker
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from services.gateway.prepared_models import PreparedModel
from services.gateway.settings import GatewaySettings, ttft_bound_s
from shared.bus import Bus
from shared.clock import Clock
from shared.process.tracing import Tracing
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.watch.probe import executor_probe
from shared.watch.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all models of a gateway have in common."""

    bus: Bus
    settings: GatewaySettings
    clock: Clock
    tuning: Tuning
    tracing: Tracing
    online_metrics: GenerationMetrics
    flex_metrics: GenerationMetrics
    num_live: Callable[[], int]  # online requests of all models


class GatewayModel:
    """One of them."""

    def __init__(self, prepared: PreparedModel, around: Surroundings, own_id: str) -> None:
        """``own_id``: where its executors send tokens; no other model of any gateway has it."""
        bus, clock, tracing = around.bus, around.clock, around.tracing
        self.name = prepared.name  # in the stack
        self.served = prepared.served
        self.tokenizer = prepared.tokenizer
        self.registry = ExecutorRegistry(bus, prepared.name)
        self.router = Router(self.registry, around.tuning)
        self.tracker = OnlineTracker(bus, self.router, own_id, clock, around.online_metrics, tracing)
        of_model = subjects.of_model(prepared.name)
        flex = around.flex_metrics, tracing
        self.flex = FlexTracker(bus, of_model, self.registry, f"{own_id}-flex", clock, *flex)
        waits = self.tracker.room, around.num_live, self.router.wait_s
        self.admission = Admission(bus, clock, around.settings, *waits, ttft_bound_s(prepared.slo))
        self._probe = executor_probe(bus, self._executors_at_work, self.registry.lose, self._is_idle, own_id)
        for each in (self.tracker, self.flex):
            each.on_live.append(self._probe.look)

    async def start(self) -> None:
        """Hear its executors, and what they send."""
        for each in (self.registry, self.tracker, self.flex):
            await each.start()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in (self.registry, self._probe, self.tracker, self.flex):
                tasks.create_task(each.run())

    def not_ready_because(self) -> str | None:
        """Why no completion can be served now; None where one can."""
        return None if self.registry.available() else self.registry.unavailable_because()

    def _is_idle(self) -> bool:
        return not (self.tracker.num_live or self.flex.num_live)

    def _executors_at_work(self) -> Iterable[ExecutorInfo]:
        """For this gateway."""
        places = self.tracker.places() | self.flex.places()
        infos = (each.info for each in self.registry.live())
        return [info for info in infos if (info.executor_id, info.epoch) in places]


class _Asked(msgspec.Struct):
    """Of any body that names a model."""

    model: str | None = None


_decoder = msgspec.json.Decoder(_Asked)


class Models:
    """In the order in which they are described; the first is for requests that name none."""

    def __init__(self, models: Sequence[GatewayModel]) -> None:
        self._models = list(models)
        self._by_name = {name: each for each in models for name in each.served.names}

    def __iter__(self) -> Iterator[GatewayModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> GatewayModel:
        return self._models[0]

    def of(self, name: str | None) -> GatewayModel:
        """What clients call so; the default where none is: it says to whom it is asked for."""
        return self._by_name.get(name or "", self.default)

    def asked_in(self, body: bytes) -> GatewayModel:
        """By the body's ``model``; the default where it cannot be read: whoever parses it says what is wrong."""
        if len(self._models) == 1:
            return self.default
        try:
            return self.of(_decoder.decode(body).model)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.default

    def num_live(self) -> int:
        """Online requests under way."""
        return sum(each.tracker.num_live for each in self._models)

    def not_ready_because(self) -> str | None:
        """Why no model can be served now; None where one can."""
        whys = [each.not_ready_because() for each in self._models]
        return None if None in whys else "; ".join(why for why in whys if why)

    def unserved(self) -> dict[str, str]:
        """Of several, those that cannot be served now, and why, by the name that is in answers."""
        whys = {each.served.name: each.not_ready_because() for each in self._models if len(self._models) > 1}
        return {name: why for name, why in whys.items() if why is not None}

    def check_online(self, client_id: str) -> None:
        """Whether one of them takes one more of this client, before it is known which is asked for. Raises Refusal
        (503)."""
        if not any(each.admission.takes_online(client_id) for each in self._models):
            self.default.admission.check_online(client_id)

    async def check_offline(self) -> None:
        """Whether one of them takes offline work, before it is known which is asked for. Raises Refusal (429) and
        BusError."""
        if all(each.admission.is_busy for each in self._models):
            raise online_first()
        await self.default.admission.check_stored()
