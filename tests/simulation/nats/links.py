"""Links between clients and a server: what is sent comes in order, after a delay, or not while the link is cut."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

Handler = Callable[..., None]


@dataclass(eq=False)
class Direction:
    """One way of a link. What it carries is TCP's: while it is cut, bytes wait; they come when it is whole again, or
    are lost with the connection."""

    latency_s: float = 0.0
    jitter_s: float = 0.0  # at most, on top; never out of order
    is_cut: bool = False
    loses: Callable[[str], bool] | None = None  # core messages whose subject it tells of are lost in it
    pipes: dict[int, "Pipe"] = field(default_factory=dict)

    def cut(self) -> None:
        self.is_cut = True

    def heal(self) -> None:
        self.is_cut = False
        for pipe in list(self.pipes.values()):
            pipe.resume()


@dataclass(eq=False)
class Link:
    """Between the server and whoever connects by one name, over all its connections."""

    up: Direction = field(default_factory=Direction)  # to the server
    down: Direction = field(default_factory=Direction)  # from it

    def cut(self) -> None:
        """Both ways."""
        self.up.cut()
        self.down.cut()

    def heal(self) -> None:
        self.up.heal()
        self.down.heal()


class Pipe:
    """One way of one connection."""

    def __init__(self, direction: Direction, rng: random.Random, context: Context) -> None:
        """``context``: that of the end where it comes out."""
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._direction = direction
        self._rng = rng
        self._under_way: deque[tuple[float, int, Handler, tuple[Any, ...]]] = deque()
        self._timer: asyncio.Handle | None = None
        self.num_bytes = 0  # under way
        direction.pipes[id(self)] = self

    def send(self, num_bytes: int, handler: Handler, *arguments: Any) -> None:
        """Call it at the other end."""
        way, under_way = self._direction, self._under_way
        due_s = 0.0
        if way.latency_s or way.jitter_s:
            due_s = self._loop.time() + way.latency_s
            if way.jitter_s:
                due_s += way.jitter_s * self._rng.random()
        if under_way and under_way[-1][0] > due_s:
            due_s = under_way[-1][0]
        under_way.append((due_s, num_bytes, handler, arguments))
        self.num_bytes += num_bytes
        if self._timer is None and not way.is_cut:
            if due_s:
                self._timer = self._loop.call_at(due_s, self._arrive, context=self._context)
            else:
                self._timer = self._loop.call_soon(self._arrive, context=self._context)

    def resume(self) -> None:
        if self._under_way and self._timer is None and not self._direction.is_cut:
            self._timer = self._loop.call_at(self._under_way[0][0], self._arrive, context=self._context)

    def lose(self, num_kept: int = 0) -> None:
        """All that is under way, but for the first ``num_kept``."""
        while len(self._under_way) > num_kept:
            self.num_bytes -= self._under_way.pop()[1]

    def close(self) -> None:
        """Nothing comes any more."""
        self.lose()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._direction.pipes.pop(id(self), None)

    def __len__(self) -> int:
        return len(self._under_way)

    def _arrive(self) -> None:
        self._timer = None
        if self._direction.is_cut:
            return
        under_way = self._under_way
        num_due = len(under_way)  # what is sent meanwhile comes after what others do now
        now_s = self._loop.time()
        while num_due and under_way and (under_way[0][0] <= now_s):
            num_due -= 1
            _, num_bytes, handler, arguments = under_way.popleft()
            self.num_bytes -= num_bytes
            handler(*arguments)
        if under_way and self._timer is None and not self._direction.is_cut:
            self._timer = self._loop.call_at(under_way[0][0], self._arrive, context=self._context)
