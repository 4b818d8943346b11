"""How long an online prompt waits for the offline step in which it arrives (OOCO section 3.4.1)."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.figures.pools_lab import Case, PoolsLab, PoolSystem
from benchmarks.harness.charts import Curves, Point
from benchmarks.harness.command import Row
from benchmarks.harness.page import Result
from shared.latency.features import BatchFeatures
from shared.pictures import BLUE, GREY, ORANGE

ALONE, WITHOUT, WITH = "no offline work", "no interruption", "interruption"
TTFT = ("mean TTFT (ms)", "TTFT p99 (ms)")


def interruptions(
    lab: PoolsLab, case: Case, without: PoolSystem, interrupting: PoolSystem, rate: float, chunks: Sequence[int]
) -> Result:
    """``rate``: of online requests, few enough that they seldom meet each other; ``chunks``: tokens of a step, which
    offline prompts fill."""
    full, points = lab.capacity(case, rate), []
    for chunk in chunks:
        step_ms = _step_ms(lab, case, replace(without, chunk=chunk))
        for name, system, offline_rate in ((ALONE, without, 0.0), (WITHOUT, without, full), (WITH, interrupting, full)):
            run = lab.run(case, replace(system, chunk=chunk), rate, offline_rate)
            cells: Row = {
                "tokens of a step": f"{chunk:,}",
                "step ms": f"{step_ms:.0f}",
                "system": name,
                "TTFT mean ms": f"{run.ttft_mean_ms:.0f}",
                "TTFT p99 ms": f"{run.ttft_p99_ms:.0f}",
                "interrupted steps": f"{run.interrupted:,}",
                "offline tokens/s": f"{run.offline_tokens_per_s:,.0f}",
            }
            values = dict(zip(TTFT, (run.ttft_mean_ms, run.ttft_p99_ms), strict=True))
            points.append(Point("", "", name, step_ms, values, cells))
    caption = (
        f"{case.name}, one relaxed and one strict executor; {rate:g} online requests/s beside offline prompts without "
        f"end, {lab.where()}."
    )
    styles = {WITH: ("o-", BLUE), ALONE: ("o--", GREY), WITHOUT: ("o-", ORANGE)}
    return Curves("length of an offline step (ms)", styles).result(points, caption, 2.8)


def _step_ms(lab: PoolsLab, case: Case, system: PoolSystem) -> float:
    """Of nothing but offline prompts, each of mean length."""
    features, prompt = BatchFeatures(), round(lab.offline.prompt.mean)
    for start in range(0, system.chunk, prompt):
        features.add_prefill(min(prompt, system.chunk - start), 0)
    return lab.setup(case, system).latency.predict_ms(features)
