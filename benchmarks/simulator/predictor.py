"""How well the predictor predicts, beside what noise allows: ``python -m benchmarks.simulator.predictor``.

Batches of simulated schedules on some GPUs, timed by their roofline with noise, as the predictor keeps and fits them.
"""

from functools import partial

from benchmarks.harness.command import Results, benchmark, formatted
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import Machine, setup_of
from benchmarks.lab.samples import scheduled_shapes, timed, window_of
from services.predictor.fit import FITS_ON_REQUEST, fit_best
from shared.protocol.profiling.latency_models import Candidate

MACHINES = (("llama2-7b", "a100-40g"), ("qwen-14b", "a40"), ("llama3.1-8b", "h100"))
NOISES = (0.0, 0.01, 0.03)
MEAN_DEVIATION = 0.798  # of a normal distribution, in sigmas
ROUNDS = 5


@benchmark
def main() -> Results:
    for model, device in MACHINES:
        machine = Machine(model, device)
        shapes = [shape for seed in (1, 2, 3) for shape in scheduled_shapes(machine, seed)]
        for noise in NOISES:
            observations = window_of(timed(shapes, setup_of(machine).latency, noise, seed=4)).observations()
            times, candidates = Times(), dict[str, Candidate]()
            for wanted in FITS_ON_REQUEST:
                for _ in range(ROUNDS):
                    fitted = times.time(partial(fit_best, observations, wanted=wanted))
                assert fitted is not None and len(fitted.candidates) == 3, "the samples tell too little"
                candidates |= {each.kind: each for each in fitted.candidates}
            yield {
                "steps": f"{model}, {device}",
                "noise": f"{noise:.0%}",
                "samples": f"{len(observations):,}",
                **formatted(".2%", {f"{each.kind} MAPE": each.mape for each in candidates.values()}),
                "noise floor": f"{noise * MEAN_DEVIATION:.2%}",
                **formatted(".2f", {f"{each.kind} us": each.prediction_us for each in candidates.values()}),
                "fit ms": f"{times.median_ms:.0f}",
            }
