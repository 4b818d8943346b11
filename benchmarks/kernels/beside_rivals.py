"""The speed of our attention beside that of others: decodes, prefills and steps of both, with the heads of models that
are served. Nothing that is read is in the L2 cache before."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.harness.gpus import this_gpu
from benchmarks.harness.table import Row
from benchmarks.harness.turns import Times, in_turns
from benchmarks.kernels.rivals.installed import Rivals, reason
from benchmarks.kernels.work import Attention, ColdCudaTimes, Work

HEADS = {
    "SmolLM2-135M": (9, 3, 64),
    "Llama-2-7B": (32, 32, 128),
    "Llama-3.1-8B": (32, 8, 128),
    "Qwen2.5-7B": (28, 4, 128),
}  # query heads, KV heads, head size
OURS = "ours"
TOLERANCE = 2e-2  # of bfloat16, as in the kernels' tests


@dataclass(frozen=True, slots=True)
class Shape:
    """``parts``: computed and new tokens of each sequence, decodes first."""

    name: str
    parts: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, decodes: int, context: int, new: int = 0, computed: int = 0) -> Shape:
        chunk = f"{new} after {computed}" if new else ""
        names = [f"{decodes} x {context}"] * (decodes > 0) + [chunk] * (new > 0)
        return cls(" + ".join(names), [(context - 1, 1)] * decodes + [(computed, new)] * (new > 0))


SHAPES = {
    "decode": [Shape.of(1, 8192), Shape.of(8, 1024), Shape.of(32, 1024), Shape.of(16, 8192), Shape.of(128, 2048)],
    "prefill": [Shape.of(0, 0, 128, 1024), Shape.of(0, 0, 2048, 0), Shape.of(0, 0, 512, 7680)],
    "mixed": [Shape.of(32, 1024, 256, 0), Shape.of(64, 2048, 512, 1536), Shape.of(64, 2048, 2048, 0)],
}
SMALL_SHAPES = {"decode": [Shape.of(2, 40)], "prefill": [Shape.of(0, 0, 12, 20)], "mixed": [Shape.of(2, 40, 12, 20)]}


@dataclass(frozen=True, slots=True)
class Speed:
    """``ms``: by who attends; of one layer, in bfloat16."""

    kind: str
    model: str
    shape: Shape
    ms: Mapping[str, float]

    def tb_per_s(self, name: str) -> float:
        """Keys and values that are read, each once."""
        _, num_kv_heads, head_dim = HEADS[self.model]
        tokens = sum(computed + new for computed, new in self.shape.parts)
        return 2 * tokens * num_kv_heads * head_dim * torch.bfloat16.itemsize / self.ms[name] / 1e9

    def tflop_per_s(self, name: str) -> float:
        """Products of queries with keys and of weights with values, as far as causality has any."""
        num_heads, _, head_dim = HEADS[self.model]
        pairs = sum(new * computed + new * (new + 1) // 2 for computed, new in self.shape.parts)
        return 4 * pairs * num_heads * head_dim / self.ms[name] / 1e9


def speeds(device: str, runs: int, found: list[Speed]) -> Generator[Row | str, None, str]:
    """A table for each kind of step; ``found`` receives what they hold. On a CPU tiny shapes in Triton's interpreter,
    whose times say nothing."""
    rivals, failures = Rivals.installed(device), dict[str, str]()
    if device == "cpu":
        yield "Triton's interpreter: the times of ours say that it runs, and nothing of its speed."
    for kind, shapes in (SMALL_SHAPES if device == "cpu" else SHAPES).items():
        yield f"{kind.capitalize()}: one layer, bfloat16, blocks of 16 scattered, medians of {runs} turns."
        for speed in _of_kind(kind, shapes, device, runs, rivals, failures):
            found.append(speed)
            yield _row(speed, list(rivals.attentions), device)
    for name, why in {**rivals.missing, **failures}.items():
        yield f"{name}: {why}."
    return f"{len(found)} shapes beside {', '.join(rivals.attentions) or 'nothing'}"


def _of_kind(
    kind: str, shapes: Sequence[Shape], device: str, runs: int, rivals: Rivals, failures: dict[str, str]
) -> Iterator[Speed]:
    for model, heads in HEADS.items():
        if device == "cpu" and model != next(iter(HEADS)):
            return
        for shape in shapes:
            work = Work.of(heads, shape.parts, device, torch.bfloat16)
            steps = _contenders(work, rivals, failures, f"{model}, {shape.name}")
            if device == "cpu":
                times = in_turns(list(steps.values()), runs, 0, Times)
            else:
                times = in_turns(list(steps.values()), runs, 3, ColdCudaTimes)
            yield Speed(kind, model, shape, dict(zip(steps, (each.median_ms for each in times), strict=True)))


def _contenders(work: Work, rivals: Rivals, failures: dict[str, str], where: str) -> dict[str, Attention]:
    """Those whose results are ours; the others are noted."""
    steps = {OURS: work.step(paged=True)}
    expected = steps[OURS]()
    for name, attention in rivals.attentions.items():
        try:
            step = attention(work)
            torch.testing.assert_close(step(), expected, atol=TOLERANCE, rtol=TOLERANCE)
        except (Exception, AssertionError) as error:  # they raise what they like for what they do not know
            failures[f"{name} ({where})"] = reason(error)
        else:
            steps[name] = step
    return steps


def _row(speed: Speed, rivals: Sequence[str], device: str) -> Row:
    others = [ms for name, ms in speed.ms.items() if name != OURS]
    return {
        speed.kind: f"{speed.model}, {speed.shape.name}",
        **{f"{name} ms": f"{speed.ms[name]:.3f}" if name in speed.ms else "" for name in (OURS, *rivals)},
        **({} if device == "cpu" else _rate(speed)),
        "times as fast as the fastest other": f"{min(others) / speed.ms[OURS]:.2f}" if others else "",
    }


def _rate(speed: Speed) -> Row:
    """Of decodes what memory gives, of prefills what tensor cores do, and how much of the GPU's that is."""
    gpu = this_gpu()
    if speed.kind == "decode":
        rate, unit, peak = speed.tb_per_s(OURS), "TB/s", gpu and gpu.memory_bytes_per_s
    elif speed.kind == "prefill":
        rate, unit, peak = speed.tflop_per_s(OURS), "TFLOP/s", gpu and gpu.half_flops_per_s
    else:
        return {}
    cells = {f"ours, {unit}": f"{rate:.2f}" if rate < 10 else f"{rate:,.0f}"}
    return {**cells, "of the data sheet's": f"{rate * 1e12 / peak:.0%}"} if peak else cells
