"""KV blocks that offline work leaves for a burst of online work: Echo, sections 4.2 and 5.3."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from shared.named import named

NUM_BUCKETS = 60  # of a window: a minute each where that is an hour


class Reserve(Protocol):
    """Told at each step how many blocks online requests hold, and asked, where it ever leaves any."""

    leaves_blocks: ClassVar[bool]

    def observe(self, now_s: float, num_online_blocks: int) -> None:
        """From now on they hold so many. Times do not go back."""

    def num_blocks(self, num_online_blocks: int) -> int:
        """Blocks that offline work is to leave while online requests hold so many."""


class NoReserve:
    """Offline work may have all that online work leaves at the moment."""

    leaves_blocks: ClassVar[bool] = False

    def observe(self, now_s: float, num_online_blocks: int) -> None:
        """Nothing depends on it."""

    def num_blocks(self, num_online_blocks: int) -> int:
        return 0


@dataclass(slots=True)
class _Moments:
    """Of what online requests held, over time: seconds, block seconds, and those of the square."""

    weight_s: float = 0.0
    blocks_s: float = 0.0
    squares_s: float = 0.0

    def add(self, duration_s: float, num_blocks: int) -> None:
        self.weight_s += duration_s
        self.blocks_s += duration_s * num_blocks
        self.squares_s += duration_s * num_blocks * num_blocks


class BurstReserve:
    """Mean + k sigma of the blocks that online requests have held over the last window, each number weighted with the
    time that it held. What they hold now is of that already: the rest is to be left for them.

    The window goes on in buckets, so that memory is bounded: what leaves it does so a 60th of it at a time. What has
    not been seen is not counted: at first the window is as long as has been seen.
    """

    leaves_blocks: ClassVar[bool] = True

    def __init__(self, window_s: float, num_sigmas: float) -> None:
        """Raises ValueError for a window of no length, or fewer than 0 sigmas."""
        if window_s <= 0 or num_sigmas < 0:
            raise ValueError(
                f"a reserve is of a window over 0 s and at least 0 sigmas, not {window_s} and {num_sigmas}"
            )
        self._bucket_s = window_s / NUM_BUCKETS
        self._num_sigmas = num_sigmas
        self._ended: deque[tuple[int, _Moments]] = deque()  # buckets by number, oldest first
        self._sum = _Moments()  # of those
        self._index = 0  # of the current bucket
        self._current = _Moments()
        self._since_s: float | None = None  # when the last number came
        self._num_online_blocks = 0
        self._most_blocks: float | None = None  # since the last observation, once somebody has asked

    def observe(self, now_s: float, num_online_blocks: int) -> None:
        if self._since_s is None:
            self._since_s, self._index = now_s, int(now_s // self._bucket_s)
        if now_s > self._since_s:
            self._pass_time(self._since_s, now_s)
            self._since_s, self._most_blocks = now_s, None
        self._num_online_blocks = num_online_blocks

    def num_blocks(self, num_online_blocks: int) -> int:
        """Rounded up."""
        return max(0, math.ceil(self.most_blocks()) - num_online_blocks)

    def most_blocks(self) -> float:
        """Mean + k sigma of what online requests hold, up to the last observation; 0 before anything was seen."""
        if self._most_blocks is None:
            self._most_blocks = self._mean_and_sigmas()
        return self._most_blocks

    def _mean_and_sigmas(self) -> float:
        weight_s = self._sum.weight_s + self._current.weight_s
        if weight_s <= 0:
            return 0.0
        mean = (self._sum.blocks_s + self._current.blocks_s) / weight_s
        variance = (self._sum.squares_s + self._current.squares_s) / weight_s - mean * mean
        return mean + self._num_sigmas * math.sqrt(max(0.0, variance))

    def _pass_time(self, start_s: float, end_s: float) -> None:
        """The last number has held from ``start_s`` on."""
        last = int(end_s // self._bucket_s)
        if last - self._index > NUM_BUCKETS:  # a window and more without news
            start_s = max(start_s, (last - NUM_BUCKETS) * self._bucket_s)
            self._turn_to(last - NUM_BUCKETS)
        while self._index < last:
            bucket_end_s = (self._index + 1) * self._bucket_s
            self._current.add(max(0.0, bucket_end_s - start_s), self._num_online_blocks)
            start_s = max(start_s, bucket_end_s)
            self._turn_to(self._index + 1)
        self._current.add(max(0.0, end_s - start_s), self._num_online_blocks)

    def _turn_to(self, index: int) -> None:
        """Begin a bucket, and forget what is out of the window by then. Summed anew: differences would drift."""
        self._ended.append((self._index, self._current))
        self._index, self._current = index, _Moments()
        while self._ended and self._ended[0][0] <= index - NUM_BUCKETS:
            self._ended.popleft()
        moments = [each for _, each in self._ended]
        self._sum = _Moments(
            math.fsum(each.weight_s for each in moments),
            math.fsum(each.blocks_s for each in moments),
            math.fsum(each.squares_s for each in moments),
        )


KV_RESERVES: dict[str, Callable[[float, float], Reserve]] = {
    "none": lambda window_s, num_sigmas: NoReserve(),
    "burst": BurstReserve,
}


def make_reserve(name: str, window_s: float, num_sigmas: float) -> Reserve:
    """A new one, for one executor. Raises ValueError that lists the known names, or for a bad number."""
    return named(KV_RESERVES, name, "KV reserve")(window_s, num_sigmas)
