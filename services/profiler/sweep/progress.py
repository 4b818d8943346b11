"""How far the profiler is, as others see it."""

import enum
from dataclasses import dataclass

from shared.process.service import Details


class SweepState(enum.StrEnum):
    """Of one profile key, or of the profiler as a whole: then the first of these that any key is in."""

    SWEEPING = "sweeping"
    FITTING = "fitting"  # samples are sent, the predictor's model has not been seen
    DEFERRED = "deferred"  # the executor had too much work; the sweep comes when it is idle
    FAILED = "failed"  # the executor runs none of the shapes
    DONE = "done"
    WAITING = "waiting"  # no executor has registered


@dataclass(slots=True)
class _Figures:
    state: SweepState
    shapes_measured: int = 0
    shapes_total: int = 0


class SweepProgress:
    """One state for each profile key."""

    def __init__(self) -> None:
        self._keys: dict[str, _Figures] = {}

    def enter(self, profile_key: str, state: SweepState) -> None:
        """Note a new state; the counts of shapes stay."""
        self._keys.setdefault(profile_key, _Figures(state)).state = state

    def count(self, profile_key: str, measured: int, total: int) -> None:
        """Note how many of a sweep's shapes are through."""
        figures = self._keys[profile_key]
        figures.shapes_measured, figures.shapes_total = measured, total

    def forget(self, profile_key: str) -> None:
        """The executor of this key is gone before anything came of it."""
        self._keys.pop(profile_key, None)

    def state(self) -> SweepState:
        """Of the whole."""
        present = {figures.state for figures in self._keys.values()}
        return next((state for state in SweepState if state in present), SweepState.WAITING)

    def details(self) -> Details:
        """``profile_progress``: the share of the running sweeps' shapes that are through; 1 when all is done."""
        state = self.state()
        sweeping = [figures for figures in self._keys.values() if figures.state == SweepState.SWEEPING]
        measured, total = sum(f.shapes_measured for f in sweeping), sum(f.shapes_total for f in sweeping)
        is_measured = state in (SweepState.DONE, SweepState.FITTING)
        return {
            "profile_state": state.value,
            "profile_progress": 1.0 if is_measured else round(measured / max(total, 1), 3),
            "shapes_measured": measured,
            "shapes_total": total,
            "profiles": sum(figures.state == SweepState.DONE for figures in self._keys.values()),
        }
