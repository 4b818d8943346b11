"""When a step leaves a pipeline of engine stages."""

INTERRUPTED_AFTER = 1 / 32  # of a step, of which a layer of a usual model takes as much


class Stages:
    """A step's time is shared evenly by the stages; it enters each in turn, when the step before has left it."""

    def __init__(self, depth: int) -> None:
        self._free = [0.0] * depth  # when each is, in seconds

    def leave(self, start_s: float, duration_s: float) -> float:
        """When a step that starts now has been through all of them."""
        time_s = start_s
        for stage, free_s in enumerate(self._free):
            time_s = max(time_s, free_s) + duration_s / len(self._free)
            self._free[stage] = time_s
        return time_s
