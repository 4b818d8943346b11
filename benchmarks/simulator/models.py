"""What each kind of latency model makes of the batches of a GPU: ``python -m benchmarks.simulator.models``.

How far each is off on a minute of a simulated schedule that it was not fitted to, for decodes alone and for both
phases; and, in the picture that is kept with the table, what each says of ever more decodes and of ever longer ones,
beside the roofline that timed the samples.
"""

from collections.abc import Callable, Sequence

from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Results, Row, Table, benchmark
from benchmarks.harness.table import Result
from benchmarks.lab.drawn import mixed_load
from benchmarks.lab.fits import error_cells, fits_of
from benchmarks.lab.lab import Bench, Machine, setup_of
from benchmarks.lab.samples import DURATION_S, NOISE, scheduled_shapes, sweep_samples, timed, window_of
from services.predictor.window import Observation
from shared.latency.architectures import architecture_named
from shared.latency.features import BatchFeatures
from shared.pictures import GREY

MACHINE = Machine("llama2-7b", "a100-40g")
FITS = fits_of(architecture_named(MACHINE.model))
CONTEXT, DECODES = 1000, 32  # what the picture keeps to
DECODE_COUNTS, CONTEXTS = (1, 8, 16, 32, 48, 64), (32, 250, 500, 1000, 1500, 2000)
PHASES: dict[str, Callable[[BatchFeatures], bool]] = {
    "all": lambda shape: True,
    "decodes alone": lambda shape: not shape.prefill_requests,
    "both phases": lambda shape: bool(shape.prefill_requests and shape.decode_requests),
}


def _caption() -> str:
    return (
        f"Mean absolute percentage error on a minute of simulated steps, timed with {100 * NOISE:g}% noise, of all "
        f"batches, of those with decodes alone and of those with both phases. {MACHINE.model} on {MACHINE.device}."
    )


def _rows(name: str, fitted_to: Sequence[Observation], unseen: Sequence[Observation]) -> list[Row]:
    rows = []
    for phase, is_one in PHASES.items():
        those = [each for each in unseen if is_one(each.shape)]
        if those:
            cells = {"fitted to": name, "samples": f"{len(fitted_to):,}", "batches": phase, "steps": f"{len(those):,}"}
            rows.append(cells | error_cells(fitted_to, those, tuple(FITS), FITS))
    return rows


def _panels(fitted_to: Sequence[Observation]) -> list[Panel]:
    return [
        _panel(f"decodes of {CONTEXT:,} tokens", fitted_to, DECODE_COUNTS, lambda count: (count, CONTEXT)),
        _panel(f"tokens of each of {DECODES} decodes", fitted_to, CONTEXTS, lambda context: (DECODES, context)),
    ]


def _panel(
    title: str, fitted_to: Sequence[Observation], xs: Sequence[int], batch: Callable[[int], tuple[int, int]]
) -> Panel:
    """``batch``: how many decodes of which context there are at an x."""
    models = {name: (fit(fitted_to), colour) for name, (fit, colour) in FITS.items()}
    shapes = []
    for x in xs:
        count, context = batch(x)
        features = BatchFeatures()
        features.add_decodes([context] * count)
        shapes.append(features)
    truth = setup_of(MACHINE).latency
    curves = [
        Curve(name, xs, [model.predict_ms(shape) for shape in shapes], colour)
        for name, (model, colour) in models.items()
        if model is not None
    ]
    step = Curve("step", xs, [truth.predict_ms(shape) for shape in shapes], GREY, "--")
    return Panel([*curves, step], title, "ms" if xs is DECODE_COUNTS else "")


@benchmark
def main() -> Results:
    bench = Bench(MACHINE, mixed_load(2.0, DURATION_S, seed=1))
    truth, sweep = setup_of(MACHINE).latency, sweep_samples(bench.machine)
    live = window_of(timed(scheduled_shapes(MACHINE, seed=1), truth, seed=2)).observations()
    unseen = timed(scheduled_shapes(MACHINE, seed=3), truth, seed=4)
    table = Table(_caption(), [*_rows("the sweep", sweep, unseen), *_rows("another minute", live, unseen)])
    yield Result([table], draw([_panels(sweep)], 3.2))
