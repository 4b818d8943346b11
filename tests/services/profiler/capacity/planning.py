"""For tests of capacity plans: a small trace with a burst, and what it is planned with."""

import random

from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.capacity.workload import PlannedWorkload

WINDOW_S, BURST_START_S, BURST_S = 12.0, 6.0, 3.0


def make_trace(seed: int = 3, rate: float = 2.0, burst_rate: float = 40.0) -> list[TraceRequest]:
    """Chats over 12 seconds, of which 3 are a burst."""
    rng = random.Random(seed)
    times = [rng.uniform(0, WINDOW_S) for _ in range(round(rate * WINDOW_S))]
    times += [rng.uniform(BURST_START_S, BURST_START_S + BURST_S) for _ in range(round(burst_rate * BURST_S))]
    return [TraceRequest(time_s, rng.randint(100, 1500), rng.randint(2, 60)) for time_s in sorted(times)]


def make_workload(num_prompts: int = 40) -> PlannedWorkload:
    """``num_prompts``: of the backlog, which is repeated."""
    prompts = [OfflinePrompt(20, num_prompt_tokens=700) for _ in range(num_prompts)]
    return PlannedWorkload.of(ReplayPlan(make_trace(), prompts, Scaling(duration_s=WINDOW_S)), BURST_S)
