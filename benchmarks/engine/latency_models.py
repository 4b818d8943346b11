"""How far each kind of latency model is off on a torch engine's own steps.

``python -m benchmarks.engine.latency_models``: the batches of the profiler's sweep run on scratch blocks, as on a
stack; every fifth is not fitted to.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import time
from typing import Annotated

import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from services.executor.engines.torch.engine import TorchEngine
from services.executor.measure import scratch_batch
from services.predictor.fit import FITS_ON_REQUEST, fit_best
from services.predictor.window import Observation
from services.profiler.sweep.shapes import sweep_shapes, warm_up_shape
from shared.protocol.executors import ExecutorInfo
from shared.protocol.latency_models import Candidate
from shared.protocol.measurements import MeasureShape
from shared.replica.engine import Engine, batch_shape
from shared.scheduling.strategy import Strategy

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 32, 512


def measured(engine: Engine, shape: MeasureShape, info: ExecutorInfo) -> list[Observation]:
    """One for each repeat."""
    pool, observations = Strategy().make_pool(info.limits(), 0), []
    with scratch_batch(shape, pool, info.limits(), info.spec) as batch:
        for _ in range(shape.repeats):
            start_s = time.perf_counter()
            engine.execute(batch)
            observations.append(Observation(batch_shape(batch), (time.perf_counter() - start_s) * 1e3))
    return observations


@benchmark
def main(
    model: ModelOption = DEFAULT_MODEL,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    blocks: Annotated[int, typer.Option(help="KV blocks of 16 tokens.")] = 2048,
    rounds: Annotated[int, typer.Option(help="How often the sweep is run.")] = 1,
) -> Results:
    engine = TorchEngine.load(model_folder(model), model, device=device, num_blocks=blocks, num_threads=cpu_count())
    info = ExecutorInfo("engine", "", 0, "", engine.spec, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
    measured(engine, warm_up_shape(info), info)
    shapes = sweep_shapes(info) * rounds
    observations = [each for shape in shapes for each in measured(engine, shape, info)]
    candidates = dict[str, Candidate]()
    for wanted in FITS_ON_REQUEST:
        fitted = fit_best(observations, wanted=wanted)
        assert fitted is not None, "the samples tell too little"
        candidates |= {each.kind: each for each in fitted.candidates}
    yield {
        "steps": f"{model} on {engine.spec.device}",
        "samples": f"{len(observations):,}",
        **formatted(".2%", {f"{each.kind} MAPE": each.mape for each in candidates.values()}),
        "noise floor": "" if fitted.noise_floor is None else f"{fitted.noise_floor:.2%}",
    }
