"""For tests of the predictor and the profiler: run a service in-process, and an executor's measuring side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from shared.bus import Bus
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.process.service import Service
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.protocol.profiling.measurements import BUSY, REPLACED, MeasuredShape, MeasureShape
from tests.shared.latency.shapes import make_shape

KEY = "model.torch.cpu-2t.float32"
TRUTH = LinearLatencyModel(25.0, 0.8, 2e-3, 3e-4, 2e-8, 1.5, 1.2, 2e-4)


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[None]:
    """Start it, run it, and stop it at the end; an error of its main loop fails the test."""
    await service.start()
    task = asyncio.create_task(service.run())
    try:
        yield
        assert not task.done(), "the main loop ended"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await service.stop()


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Return when the condition holds; asks again every few milliseconds."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.005)


async def model_of(bus: Bus, profile_key: str = KEY, newer_than: int = 0) -> LatencyModelRecord:
    """The published model, when its revision is beyond ``newer_than``."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    async with asyncio.timeout(60):
        async for entry in models.watch():
            if entry and entry.key == profile_key and entry.value and entry.revision > newer_than:
                return entry.value
    raise AssertionError("the watch ended")


def executor_info(executor_id: str = "executor-0", **changes: Any) -> ExecutorInfo:
    """``changes``: of the registration, and of what stands in its spec."""
    spec = EngineSpec("model", "torch", "cpu-2t", "float32", 2048, 49152, 16, 2000, (0,))
    spec = replace(spec, **{name: changes.pop(name) for name in spec.__struct_fields__ if name in changes})
    return replace(ExecutorInfo(executor_id, "epoch-1", 1, KEY, spec, 64, 512), **changes)


def predicted(shape: BatchFeatures, model: LatencyModel = TRUTH) -> float:
    return model.predict_ms(shape)


class MeasuringExecutor:
    """Registers, beats, and answers measurements by a known latency formula, each repeat a little off."""

    def __init__(self, bus: Bus, info: ExecutorInfo) -> None:
        self._bus = bus
        self.info = info
        self.asked: list[MeasureShape] = []
        self.busy = False
        self.refuses: Callable[[MeasureShape], str] = lambda _: ""
        self._listening = self.listening()

    async def __aenter__(self) -> MeasuringExecutor:
        await self._listening.__aenter__()
        await self.register()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._listening.__aexit__(*exc)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer, without a registration."""
        subscription = await self._bus.serve(subjects.measure(self.info.executor_id), MeasureShape, self._answer)
        await self._bus.flush()
        yield
        await subscription.stop()

    async def register(self) -> None:
        executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        await executors.put(self.info.executor_id, self.info)

    async def beat(self) -> None:
        load = 1 if self.busy else 0
        heartbeat = Heartbeat(self.info, ExecutorCounters(), False, 0, load, 0, 0, self.info.spec.num_blocks)
        await self._bus.publish(subjects.heartbeat(self.info.executor_id), heartbeat)

    async def _answer(self, shape: MeasureShape) -> MeasuredShape:
        self.asked.append(shape)
        is_other = shape.epoch not in ("", self.info.epoch)
        why = REPLACED if is_other else BUSY if self.busy else self.refuses(shape)
        if why:
            return MeasuredShape(make_shape(), [], why)
        chunks = [(chunk.num_tokens, chunk.num_computed_tokens) for chunk in shape.prefills]
        sums = make_shape(chunks, [length + 1 for length in shape.decode_context_lens])
        return MeasuredShape(sums, [predicted(sums) * (1 + 0.01 * (n % 3 - 1)) for n in range(shape.repeats)])
