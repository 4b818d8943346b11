"""Which executors are alive, and which of them take requests."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.bus import Bus
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.steps import CacheTold
from shared.scheduling.kv.prefix_cache import CacheChanges, PrefixCacheMirror
from shared.scheduling.placement.role import acting_role
from shared.scheduling.placement.routing import RoutingTarget

logger = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 3.0
CACHE_WAIT_S = 2.0
LATE_TIMER_S = 0.5  # a timer this late says that this process was busy, not that the executor was silent


@dataclass(slots=True)
class LiveExecutor:
    """An executor with a recent heartbeat. What it has told before of its cache is not known here."""

    heartbeat: Heartbeat
    timer: asyncio.TimerHandle
    cache: PrefixCacheMirror = field(default_factory=PrefixCacheMirror)
    knows_cache: bool = False
    target: RoutingTarget = field(init=False)

    def __post_init__(self) -> None:
        info, spec = self.info, self.info.spec
        sizes = info.max_num_batched_tokens, spec.block_size, spec.num_blocks
        self.target = RoutingTarget(info.executor_id, info.epoch, *sizes, self.cache)

    @property
    def info(self) -> ExecutorInfo:
        return self.heartbeat.info


class ExecutorRegistry:
    """Follows heartbeats and registrations of the executors of one model. Each of ``on_lost`` is called, with
    (executor_id, epoch, whether it seems to have died), once for every incarnation that is gone: silent for
    HEARTBEAT_TIMEOUT_S, signed off, restarted under a new epoch, or off the bus, if only for a moment: it or this
    gateway. Each of ``on_found`` is called for every incarnation that is heard for the first time, or again."""

    def __init__(self, bus: Bus, model: str) -> None:
        self.on_lost: list[Callable[[str, str, bool], None]] = []
        self.on_found: list[Callable[[str, str], None]] = []
        self._bus = bus
        self.model = model
        self._live: dict[str, LiveExecutor] = {}
        self._registered: dict[str, None] = {}  # those that have not signed off
        self._arrived = asyncio.Event()
        self._has_gap = asyncio.Event()  # somebody's cache is not known

    async def start(self) -> None:
        """Listen to heartbeats, and to what steps change of prefix caches."""
        await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)
        await self._bus.subscribe(subjects.STEPS, CacheTold, self._on_cache)

    async def run(self) -> None:
        """Follow registrations, ask for what is not known of prefix caches, forget everyone when the bus was away."""
        async with asyncio.TaskGroup() as tasks:
            for follow in (self._watch_registrations, self._watch_connection, self._fill_gaps):
                tasks.create_task(follow())

    def live(self) -> list[LiveExecutor]:
        """Everyone alive, draining ones too, in the order of their ids."""
        return [self._live[executor_id] for executor_id in sorted(self._live)]

    def available(self) -> list[LiveExecutor]:
        """Those that take requests."""
        return [executor for executor in self.live() if not executor.heartbeat.draining]

    def silent(self) -> list[str]:
        """The ids of those that are registered and not alive: they ended without a sign-off, or cannot be heard. An
        offline-queue that hears nothing of one for an hour deletes its registration."""
        return sorted(self._registered.keys() - self._live.keys())

    def for_prompts(self, adapter: str = "") -> list[LiveExecutor]:
        """Those of them where requests begin, by what they act as beside each other, and that have the adapter."""
        there = self.available()
        pools = [executor.info.pool for executor in there]
        begin = [each for each in there if acting_role(each.info.pool, pools).is_for_prompts]
        return [each for each in begin if not each.info.spec.why_without(adapter)] if adapter else begin

    def incarnation(self, place: tuple[str, str]) -> LiveExecutor | None:
        """The executor with this id and epoch, where it is alive."""
        known = self._live.get(place[0])
        return known if known is not None and known.info.epoch == place[1] else None

    def unavailable_because(self, adapter: str = "") -> str:
        """Why none is available, or none with the adapter, where that is so."""
        if adapter and self.available():
            return f"no executor of {self.model} that takes requests has the adapter {adapter!r}"
        draining = ", ".join(each.info.executor_id for each in self.live() if each.heartbeat.draining)
        if draining:
            return f"every executor of {self.model} that is alive drains ({draining}): slackwater undrain"
        return f"no executor of {self.model} is alive"

    def max_model_len(self, default: int) -> int:
        """The longest context that every available executor can take, in tokens."""
        return min((executor.info.spec.max_model_len for executor in self.available()), default=default)

    def lose(self, info: ExecutorInfo, why: str = "left the bus", has_died: bool = True) -> None:
        """This incarnation is not to be reached any more; nothing where that is known. One that has not died may be
        heard again, or has ended in good order."""
        known = self.incarnation((info.executor_id, info.epoch))
        if known is not None:
            del self._live[info.executor_id]
            known.timer.cancel()
            logger.warning("executor lost", extra={"executor_id": info.executor_id, "epoch": info.epoch, "why": why})
            for tell in self.on_lost:
                tell(info.executor_id, info.epoch, has_died)

    async def wait_available(self, adapter: str = "") -> None:
        """Return when there is one that takes requests with the adapter: at once where there is."""
        while not (self.for_prompts(adapter) if adapter else self.available()):
            self._arrived.clear()
            await self._arrived.wait()

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        info = heartbeat.info
        if info.spec.model != self.model:
            return
        known = self._live.get(info.executor_id)
        if known is not None and known.info.epoch != info.epoch:
            self.lose(known.info, "restarted")
            known = None
        elif known is not None and known.heartbeat.reconnects != heartbeat.reconnects:
            self.lose(info, "was off the bus", has_died=False)
            known = None
        timer = self._timer(info)
        if known is not None:
            known.timer.cancel()
            known.heartbeat, known.timer = heartbeat, timer
            known.target.max_num_batched_tokens = info.max_num_batched_tokens
        else:
            known = self._live[info.executor_id] = LiveExecutor(heartbeat, timer)
            logger.info("executor found", extra={"executor_id": info.executor_id, "epoch": info.epoch})
            for tell in self.on_found:
                tell(info.executor_id, info.epoch)
        if not known.knows_cache:
            self._has_gap.set()
        known.target.observe(heartbeat.online_work)
        if not heartbeat.draining:
            self._arrived.set()

    async def _on_cache(self, told: CacheTold) -> None:
        known = self._live.get(told.executor_id)
        if known is not None and known.info.epoch == told.epoch and not known.cache.apply(told.cache):
            known.knows_cache = False
            self._has_gap.set()

    async def _fill_gaps(self) -> None:
        """Of executors that were there before this gateway, or of whom something was lost."""
        while True:
            await self._has_gap.wait()
            self._has_gap.clear()
            for executor in self.live():
                if not executor.knows_cache:
                    await self._ask_cache(executor)

    async def _ask_cache(self, executor: LiveExecutor) -> None:
        """Without an answer it is asked again at its next heartbeat."""
        executor_id = executor.info.executor_id
        try:
            told = await self._bus.request(subjects.cache(executor_id), {}, CacheChanges, CACHE_WAIT_S)
            executor.knows_cache = executor.cache.apply(told)
        except BusError as error:
            logger.info("prefix cache not known", extra={"executor_id": executor_id, "why": str(error)})

    def _timer(self, info: ExecutorInfo) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(HEARTBEAT_TIMEOUT_S, self._expire, info, loop.time() + HEARTBEAT_TIMEOUT_S)

    def _expire(self, info: ExecutorInfo, due_s: float) -> None:
        if asyncio.get_running_loop().time() - due_s > LATE_TIMER_S:
            self._live[info.executor_id].timer = self._timer(info)
        else:
            self.lose(info, "silent")

    async def _watch_registrations(self) -> None:
        bucket = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        async for entry in bucket.watch():
            if entry is None:
                continue
            if entry.value is None and entry.key in self._live:
                self.lose(self._live[entry.key].info, "signed off", has_died=False)
            if entry.value is not None and entry.value.spec.model == self.model:
                self._registered[entry.key] = None
            else:
                self._registered.pop(entry.key, None)

    async def _watch_connection(self) -> None:
        """Tokens sent while the bus was away are lost, so nobody counts as alive until heard of again."""
        seen = self._bus.reconnects
        while True:
            await self._bus.wait_reconnected(seen, timeout_s=None)
            seen = self._bus.reconnects
            for executor in self.live():
                self.lose(executor.info, "bus reconnected", has_died=False)
