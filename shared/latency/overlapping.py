"""A device that computes and reads memory at once, as NanoFlow's engine does (Zhu et al., 2024; BlendServe section 4),
with the interference that its authors measured. None of our engines overlaps like this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel

ResourceMapping = Sequence[tuple[float, float]]  # what decode attention has of a GPU, and does of its best with it

# autosearch/trace/gemv_interference.csv of github.com/efeslab/Nanoflow, commit d1bbe27, of an A100; GEMMs do as much of
# their best as they have of the GPU.
NANOFLOW: ResourceMapping = (
    (0.0, 0.0),
    (0.1, 0.25),
    (0.2, 0.4),
    (0.3, 0.5),
    (0.4, 0.6),
    (0.5, 0.7),
    (0.6, 0.8),
    (0.7, 0.85),
    (0.8, 0.9),
    (0.9, 0.95),
    (1.0, 1.0),
)


@dataclass(frozen=True, slots=True)
class Interference:
    """The least time of computing and of memory work that share a GPU (section 5.2). Computing that has 1 - r of it
    goes on at 1 - r of its best speed, reading with r at f(r). With f concave an even split is best, and the least time
    t, at which t (1 - r) is the one's time alone and t f(r) the other's, is the largest of what its pieces say: on
    f = a + b r, t = (memory + b compute) / (a + b).

    It grows with both; it is never longer than one after the other, nor shorter than the longer one. Raises ValueError
    for a mapping that does not rise from (0, 0) to (1, 1) ever less steeply."""

    mapping: ResourceMapping = NANOFLOW
    _pieces: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)  # of compute, of memory

    def __post_init__(self) -> None:
        points = tuple(self.mapping)
        if points[:1] != ((0.0, 0.0),) or points[-1] != (1.0, 1.0):
            raise ValueError("a mapping begins at (0, 0) and ends at (1, 1)")
        if any(before[0] >= after[0] for before, after in pairwise(points)):
            raise ValueError("the shares of a mapping ascend")
        slopes = [round((after[1] - before[1]) / (after[0] - before[0]), 9) for before, after in pairwise(points)]
        if slopes[-1] < 0 or any(after > before for before, after in pairwise(slopes)):
            raise ValueError("a mapping never falls, and rises ever less steeply")
        pieces: list[tuple[float, float]] = []
        for (share, speed), slope in zip(points, slopes, strict=False):
            at_all = speed + slope * (1 - share)  # a + b
            pieces.append((round(slope / at_all, 9), round(1 / at_all, 9)))
        object.__setattr__(self, "_pieces", tuple(dict.fromkeys(pieces)))

    def together_ms(self, compute_ms: float, memory_ms: float) -> float:
        """Of both, each given as it would take alone."""
        return max([of_compute * compute_ms + of_memory * memory_ms for of_compute, of_memory in self._pieces])


@dataclass(frozen=True, slots=True)
class OverlappingLatencyModel(LatencyModel):
    """The operators of a roofline model, of which decode attention runs beside the matrices and prefill attention, in
    milliseconds; all-reduces and the step's overhead are added. No step is shorter than all its memory traffic takes:
    matrices of few tokens read weights, and do not overlap with what reads too.

    That nano-batches read weights more than once is left out.
    """

    operators: RooflineLatencyModel
    interference: Interference = Interference()

    def predict_ms(self, features: BatchFeatures) -> float:
        return self._time_ms(*features.sums)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        s_p, n_p, s_d, n_d, pairs = features.sums
        after_ms = self._time_ms(s_p, n_p, s_d + context_len, n_d + 1, pairs)
        return max(after_ms - self._time_ms(s_p, n_p, s_d, n_d, pairs), 0.0)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        s_p, n_p, s_d, n_d, pairs = features.sums
        after = pairs + attention_pairs(num_tokens, num_computed_tokens)
        return max(self._time_ms(s_p + num_tokens, n_p + 1, s_d, n_d, after) - self.predict_ms(features), 0.0)

    def _time_ms(self, s_p: int, n_p: int, s_d: int, n_d: int, pairs: int) -> float:
        """Of ``BatchFeatures.sums``."""
        if n_p + n_d == 0:
            return 0.0
        operators, tokens = self.operators, s_p + n_d
        reading_ms = s_d * operators.ms_per_kv_token
        added_ms = operators.overhead_ms(n_p, n_d) + tokens * operators.ms_per_token_link
        computing_ms = operators.time_ms(s_p, n_p, s_d, n_d, pairs) - reading_ms - added_ms
        return added_ms + max(
            self.interference.together_ms(computing_ms, reading_ms), operators.traffic_ms(s_p, tokens) + reading_ms
        )
