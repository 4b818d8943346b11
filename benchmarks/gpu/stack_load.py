"""What the stage ``stack`` sends: the files that were asked for, else arrivals and lengths drawn around those of
Azure's conversations and arXiv's summaries."""

import random
from dataclasses import dataclass

from benchmarks.gpu.context import Context
from benchmarks.lab.drawn import Lognormal, poisson
from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace

RATE_PER_S = 4.0  # online requests, on a GPU
WINDOW_S = 60.0
WARM_UP_S = 10.0  # that offline work runs before a window, and both before the first
OFFLINE_ONLY_SHARE = 0.5
BACKLOG = 800  # offline requests: more than a window takes
SEED = 0
ONLINE_PROMPT, ONLINE_OUTPUT = Lognormal(1155.0, 1110.0), Lognormal(211.0, 163.0)  # tokens: mean, deviation
OFFLINE_PROMPT, OFFLINE_OUTPUT = Lognormal(6000.0, 3000.0), Lognormal(200.0, 100.0)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a run; ``length_scale``: factor on the lengths of prompts and outputs."""

    rate_per_s: float
    window_s: float
    warm_up_s: float
    backlog: int
    length_scale: float = 1.0


SIZES = {
    "cuda": Size(RATE_PER_S, WINDOW_S, WARM_UP_S, BACKLOG),
    "cpu": Size(rate_per_s=1.0, window_s=8.0, warm_up_s=2.0, backlog=700, length_scale=1 / 16),
}


def plan_of(context: Context) -> ReplayPlan:
    """Online requests alone, offline ones alone, then both. Raises LoadgenError for files that cannot be used."""
    size, rng = SIZES[context.device], random.Random(SEED)
    scaling = Scaling(
        duration_s=size.window_s,
        qps=size.rate_per_s if context.online else None,
        length_scale=size.length_scale,
        seed=SEED,
    )
    drawn = poisson(size.rate_per_s, size.window_s, rng, ONLINE_PROMPT, ONLINE_OUTPUT)
    return ReplayPlan(
        requests=scaling.apply(read_trace(context.online) if context.online else drawn),
        prompts=load_backlog(context.offline, size.backlog) if context.offline else _drawn_backlog(size.backlog, rng),
        scaling=scaling,
        baseline=True,
        offline_only_share=OFFLINE_ONLY_SHARE,
        count_generated=True,
        warm_up_s=size.warm_up_s,
    )


def _drawn_backlog(size: int, rng: random.Random) -> list[OfflinePrompt]:
    return [OfflinePrompt(OFFLINE_OUTPUT(rng), num_prompt_tokens=OFFLINE_PROMPT(rng)) for _ in range(size)]
