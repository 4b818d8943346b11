"""How well the predictor predicts, beside what noise allows: ``python -m benchmarks.simulator.predictor``.

Batches of simulated schedules on some GPUs, timed by their roofline with noise, as the predictor keeps and fits them.
With ``--torch SECONDS`` also the torch engine on this machine: the profiler's sweep, each batch twice, and mixed
batches such as live steps run, for so many seconds.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice, takewhile
from typing import Annotated

import typer

from benchmarks.harness.command import Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import Machine, setup_of
from benchmarks.lab.samples import scheduled_shapes, timed, window_of
from services.executor.engines.torch.engine import TorchEngine
from services.executor.measure import scratch_batch
from services.executor.service import executor_info
from services.executor.settings import ExecutorSettings
from services.predictor.fit import BROS, fit_best
from services.predictor.window import Observation, noise_floor
from services.profiler.sweep.shapes import REPEATS, fits, sweep_shapes, warm_up_shape
from shared.protocol.executors import ExecutorInfo
from shared.protocol.measurements import MeasureShape, PrefillChunk
from shared.replica.engine import batch_shape
from shared.scheduling.kv.blocks import BlockPool

MACHINES = (("llama2-7b", "a100-40g"), ("qwen-14b", "a40"), ("llama3.1-8b", "h100"))
NOISES = (0.0, 0.01, 0.03)
MEAN_DEVIATION = 0.798  # of a normal distribution, in sigmas
ROUNDS = 5
NUM_BLOCKS = 2048


def row(name: str, noise: str, observations: list[Observation], floor: float | None) -> Row:
    """``floor``: the share that noise alone makes, where it is known without repetitions."""
    times = Times()
    for _ in range(ROUNDS):
        fitted = times.time(partial(fit_best, observations, wanted=BROS))
    assert fitted is not None and len(fitted.candidates) == 3, "the samples tell too little"
    shown = fitted.noise_floor if floor is None else floor
    return {
        "steps": name,
        "noise": noise,
        "samples": f"{len(observations):,}",
        **formatted(".2%", {f"{each.kind} MAPE": each.mape for each in fitted.candidates}),
        "noise floor": "" if shown is None else f"{shown:.2%}",
        **formatted(".2f", {f"{each.kind} us": each.prediction_us for each in fitted.candidates}),
        "fit ms": f"{times.median_ms:.0f}",
    }


def simulated_rows() -> Iterator[Row]:
    for model, device in MACHINES:
        machine = Machine(model, device)
        shapes = [shape for seed in (1, 2, 3) for shape in scheduled_shapes(machine, seed)]
        for noise in NOISES:
            observations = window_of(timed(shapes, setup_of(machine).latency, noise, seed=4)).observations()
            yield row(f"{model}, {device}", f"{noise:.0%}", observations, noise * MEAN_DEVIATION)


def mixed_shapes(info: ExecutorInfo, seed: int) -> Iterator[MeasureShape]:
    """Decodes of varied contexts, of which two thirds come beside one or two chunks, some of them late in a prompt."""
    rng = random.Random(seed)
    while True:
        contexts = [int(rng.lognormvariate(5.5, 0.9)) % 1500 + 1 for _ in range(rng.randint(0, 48))]
        count = rng.choice((0, 1, 2))
        chunks = [PrefillChunk(rng.randint(8, 200), rng.choice((0, 0, rng.randint(16, 1500)))) for _ in range(count)]
        shape = MeasureShape(chunks, contexts, 1)
        if (chunks or contexts) and fits(shape, info):
            yield shape


def torch_samples(engine: TorchEngine, info: ExecutorInfo, shapes: Iterable[MeasureShape]) -> Iterator[Observation]:
    """Each as often as it asks for."""
    pool = BlockPool(info.spec.num_blocks, info.spec.block_size)
    for shape in shapes:
        with scratch_batch(shape, pool, info.limits(), engine.spec) as batch:
            for _ in range(shape.repeats):
                yield Observation(batch_shape(batch), engine.execute(batch).latency_ms)


def torch_rows(seconds: float) -> Iterator[Row]:
    path = model_folder()
    engine = TorchEngine.load(path, "bench", device="cpu", num_blocks=NUM_BLOCKS, num_threads=cpu_count())
    info = executor_info(ExecutorSettings(model_path=str(path)), engine.spec)
    list(torch_samples(engine, info, [warm_up_shape(info)] * REPEATS))
    sweep = list(torch_samples(engine, info, sweep_shapes(info)))
    end_s = time.perf_counter() + seconds
    live = torch_samples(engine, info, mixed_shapes(info, seed=1))
    mixed = window_of(list(takewhile(lambda _: time.perf_counter() < end_s, live))).observations()
    # some again and again, in turns, so that repetitions lie as far apart as live steps do
    repeated = list(torch_samples(engine, info, list(islice(mixed_shapes(info, seed=2), 8)) * 6))
    engine.close()
    yield row("torch, the sweep", "its own", sweep, None)
    yield row("torch, mixed steps", "its own", mixed, noise_floor(repeated))


@benchmark
def main(
    torch: Annotated[float, typer.Option(help="Seconds of mixed batches on the torch engine; 0 leaves it out.")] = 0.0,
) -> Results:
    yield from simulated_rows()
    if torch:
        yield from torch_rows(torch)
