"""How far each kind of latency model is off on an engine's own steps: ``python -m benchmarks.engine.latency_models``.

The batches of the profiler's sweep run on scratch blocks, as on a stack; every fifth of them is not fitted to. A
picture of what each kind says of each batch is kept with the table.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
import typer

from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, Table, benchmark, model_folder
from benchmarks.harness.table import Result
from benchmarks.lab.fits import Fits, fits_of
from services.executor.engines.factory import load_engine
from services.executor.measure import scratch_batch
from services.executor.settings import ExecutorSettings
from services.local.commands.predict import formula
from services.predictor.window import Observation, noise_floor
from services.profiler.sweep.shapes import sweep_shapes, warm_up_shape
from shared.latency.bottleneck import saturated_batch_size
from shared.latency.roofline import NEVER_SATURATED, RooflineLatencyModel
from shared.pictures import GREY
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import FittedModel, model_record
from shared.protocol.profiling.measurements import MeasureShape
from shared.replica.engine import Engine, batch_shape
from shared.scheduling.strategy import Strategy

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 32, 512
HELD_OUT_EVERY = 5  # shapes
Clock = Callable[[], float]


def measured(engine: Engine, shape: MeasureShape, info: ExecutorInfo, now_s: Clock) -> list[Observation]:
    """One for each repeat."""
    pool, observations = Strategy().make_pool(info.limits(), 0), []
    with scratch_batch(shape, pool, info.limits(), info.spec) as batch:
        for _ in range(shape.repeats):
            start_s = now_s()
            engine.execute(batch)
            observations.append(Observation(batch_shape(batch), (now_s() - start_s) * 1e3))
    return observations


def sweep(engine: Engine, rounds: int, now_s: Clock) -> list[list[Observation]]:
    """Of each shape all that was measured, a round after another."""
    info = ExecutorInfo("engine", "", 0, "", engine.spec, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
    measured(engine, warm_up_shape(info), info, now_s)
    shapes = sweep_shapes(info)
    found: list[list[Observation]] = [[] for _ in shapes]
    for _ in range(rounds):
        for shape, observations in zip(shapes, found, strict=True):
            observations += measured(engine, shape, info, now_s)
    return found


def row(kind: str, model: FittedModel, fitted_to: Sequence[Observation], unseen: Sequence[Observation]) -> Row:
    cells = {"model": kind}
    for heading, observations in (("fitted to", fitted_to), ("held out", unseen)):
        errors = [abs(model.predict_ms(each.shape) / each.latency_ms - 1.0) for each in observations]
        cells |= {f"{heading}, mean": f"{np.mean(errors):.2%}", f"{heading}, p99": f"{np.quantile(errors, 0.99):.2%}"}
    size = saturated_batch_size(model)
    return cells | {"saturated from": f"{size} decodes" if size < NEVER_SATURATED else "never"}


def picture(models: Mapping[str, FittedModel], fits: Fits, observations: Sequence[Observation]) -> Sequence[Panel]:
    """What each kind says of each batch, beside what it took; and what the batches reach of the fitted roofline."""
    times_ms = [each.latency_ms for each in observations]
    said = [
        Curve(kind, times_ms, [model.predict_ms(each.shape) for each in observations], fits[kind][1], ".", 0.6)
        for kind, model in models.items()
        if kind in ("linear", "boosted", "roofline")
    ]
    ends = [min(times_ms), max(times_ms)]
    panels = [Panel([*said, Curve("", ends, ends, GREY, "--")], "predicted by measured ms", is_log=True)]
    roofline = models.get("roofline")
    if isinstance(roofline, RooflineLatencyModel):
        works = [roofline.work(each.shape) for each in observations]
        intensities = [work.flops / work.memory_bytes for work in works]
        reached = [work.flops / ms / 1e6 for work, ms in zip(works, times_ms, strict=True)]
        xs, rates = sorted(intensities), roofline.rates
        heights = [min(rates.gemm_flops_per_ms, rates.gemm_bytes_per_ms * x) / 1e6 for x in xs]
        curves = [Curve("measured", intensities, reached, GREY, "."), Curve("roof", xs, heights, GREY, "--")]
        panels.append(Panel(curves, "GFLOP/s by FLOPs for each byte", is_log=True))
    return panels


@benchmark
def main(
    model: ModelOption = DEFAULT_MODEL,
    engine: Annotated[str, typer.Option(help="torch, vllm or sim.")] = "torch",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    blocks: Annotated[int, typer.Option(help="KV blocks.")] = 2048,
    threads: Annotated[int, typer.Option(help="0 is every core.")] = 0,
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Of the process, which work beside it does not lengthen as much.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="How often the sweep is run.")] = 1,
) -> Results:
    loaded = load_engine(
        ExecutorSettings(
            model_path=str(model_folder(model)),
            model_name=model,
            engine=engine,
            device=device,
            kv_blocks=blocks,
            threads=threads or cpu_count(),
        )
    )
    shapes = sweep(loaded, rounds, time.process_time if processor_time else time.perf_counter)
    spec = loaded.spec
    loaded.close()
    assert spec.architecture is not None, f"{model} is no dense decoder"
    fits = fits_of(spec.architecture, spec.tensor_parallel)
    unseen = [each for shape in shapes[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] for each in shape]
    fitted_to = [each for n, shape in enumerate(shapes, start=1) if n % HELD_OUT_EVERY for each in shape]
    models = {kind: found for kind, (fit, _) in fits.items() if (found := fit(fitted_to)) is not None}
    rows = [row(kind, found, fitted_to, unseen) for kind, found in models.items()]
    floor = noise_floor(each for shape in shapes for each in shape)
    caption = (
        f"{model}, {spec.engine} engine on {spec.device}: {len(fitted_to):,} steps of the sweep and {len(unseen):,}"
    )
    caption += " of other shapes, absolute percentage errors" + ("" if floor is None else f"; equal ones: {floor:.2%}")
    caption += "; in processor time" if processor_time else ""
    yield Result([Table(f"{caption}.", rows)], draw([picture(models, fits, [*fitted_to, *unseen])], 3.4))
    if "roofline" in models:
        yield formula(model_record(models["roofline"]))
