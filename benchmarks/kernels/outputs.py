"""How far our attention, and that of others, is from float64: over the heads of models that are served, and over steps
of every kind."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

import torch

from benchmarks.harness.table import Row
from benchmarks.kernels.rivals import sdpa
from benchmarks.kernels.rivals.installed import Rivals, reason
from benchmarks.kernels.work import Work

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # absolute, and of the value beside it
HEADS = ((9, 3, 64), (32, 8, 128), (28, 4, 128), (32, 32, 128), (8, 8, 80), (8, 4, 256))
STEPS = {
    "decodes": [(255, 1), (16, 1), (1000, 1), (0, 1)],
    "a long decode, in splits": [(6000, 1)],
    "chunks": [(0, 200), (300, 77), (15, 2)],
    "decodes and chunks": [(255, 1), (1000, 1), (0, 200), (300, 77)],
}  # computed and new tokens
SMALL_HEADS = ((9, 3, 64),)
SMALL_TOLERANCE = {torch.float32: TOLERANCE[torch.float32]}
SMALL_STEPS = {"decodes and chunks": [(17, 1), (9, 12)]}

Parts = list[tuple[int, int]]


@dataclass(slots=True)
class Worst:
    """The error that is nearest to its tolerance, or beyond it. ``share``: of the tolerance."""

    share: float = 0.0
    error: float = 0.0

    def meet(self, out: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
        errors = (out.double() - expected).abs()
        shares = errors / (tolerance * (1 + expected.abs()))
        shares = shares.nan_to_num(nan=torch.inf)
        if (share := float(shares.max())) >= self.share:
            self.share, self.error = share, float(errors.flatten()[shares.argmax()])


def beside_float64(device: str) -> Generator[Row | str, None, str]:
    """A row for each head size and dtype; raises AssertionError at the end where ours was beyond tolerance."""
    cpu = device == "cpu"
    rivals, failures, met = Rivals.installed(device), dict[str, str](), 0
    yield "The largest difference from float64, nearest to its tolerance of all steps."
    beyond = []
    for heads in SMALL_HEADS if cpu else HEADS:
        for dtype, tolerance in (SMALL_TOLERANCE if cpu else TOLERANCE).items():
            worst = {name: Worst() for name in ("ours", *rivals.attentions)}
            for step in (SMALL_STEPS if cpu else STEPS).values():
                _measure(Work.of(heads, step, device, dtype), worst, rivals, failures)
                met += 1
            yield _row(heads, dtype, tolerance, worst)
            if worst["ours"].share > 1:
                beyond.append(f"{heads} {dtype}")
    for name, why in {**rivals.missing, **failures}.items():
        yield f"{name}: {why}."
    assert not beyond, f"beyond tolerance: {', '.join(beyond)}"
    return f"steps within tolerance: {met}"


def _measure(work: Work, worst: Mapping[str, Worst], rivals: Rivals, failures: dict[str, str]) -> None:
    """Ours from the left, from the right, both, and in one launch; rivals', which know one direction, from the left."""
    tolerance = TOLERANCE[work.query.dtype]
    directions: tuple[Callable[[int], bool], ...] = (lambda i: False, lambda i: True, lambda i: i % 2 == 1)
    for right in directions:
        directed = work.filled(right)
        expected = _float64(directed)
        for fused in (False, True):
            worst["ours"].meet(directed.step(fused, paged=True)(), expected, tolerance)
    expected = _float64(work)
    for name, attention in rivals.attentions.items():
        try:
            out = attention(work)()
        except Exception as error:  # a head size or dtype that it does not know
            failures[f"{name} with {str(work.query.dtype).removeprefix('torch.')}"] = reason(error)
        else:
            worst[name].meet(out, expected, tolerance)


def _float64(work: Work) -> torch.Tensor:
    wide = replace(work, query=work.query.double(), kv_cache=work.kv_cache.double())
    return sdpa.attention(wide)()


def _row(heads: tuple[int, int, int], dtype: torch.dtype, tolerance: float, worst: Mapping[str, Worst]) -> Row:
    num_heads, num_kv_heads, head_dim = heads
    cells = {name: f"{each.error:.1e}" if each.share else "" for name, each in worst.items()}
    return {
        "query heads, KV heads, head size": f"{num_heads}, {num_kv_heads}, {head_dim}",
        "dtype": str(dtype).removeprefix("torch."),
        "tolerance": f"{tolerance:.0e}",
        **cells,
        "ours, of the tolerance": f"{worst['ours'].share:.0%}",
    }
