"""Planning time of one step against queue sizes: ``python -m benchmarks.scheduling.planning``.

A plan of HyGen Alg. 2 as the offline-queue makes it: the executor's word taken over, the running step's outcome
assumed, both phases scheduled, the message made. Half of the running requests are online. The latency model is linear;
the last rows plan with a boosted one, fitted to batches of a simulated schedule, by deadlines (BROS), by what is
cached (Echo), and at random and by length (OOCO), there also where half of the offline ones of 256 do not fit.
"""

import math
import time
from functools import partial
from itertools import product

from msgspec.structs import replace

from benchmarks.harness.command import Results, Row, benchmark, quantiles
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import Machine
from benchmarks.lab.samples import fitted_model
from benchmarks.scheduling.offline_order import ORDERS, make_pool, offline_request
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.scheduler import Scheduler
from shared.process.memory import collect_seldom
from shared.protocol.codec import encode
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.steps import PlanSource, StepStarted
from shared.scheduling.packing.pace import Pace
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy

LINEAR = LinearLatencyModel(10.0, 0.07, 0.0004, 1e-7, 1e-12, 0.05, 0.05, 3e-6)
HELD, DEADLINES, KV_AWARE = Policy(100.0), Policy(packing="deadline"), Policy(packing="kv-aware")
MIXED, TIGHT = Policy(100.0, packing="mix-decoding"), Policy(58.0, packing="mix-decoding")
STRATEGIES = {
    DEADLINES: Strategy.of("bros"),
    KV_AWARE: Strategy.of("echo", tpot_slo_ms=200.0),  # time for all that run
    MIXED: Strategy.of("ooco"),
    TIGHT: Strategy.of("ooco"),
}
SPEC = EngineSpec("m", "sim", "none", "float16", 4096, 49_152, 16, 40_000, (2,))
INFO = ExecutorInfo("executor-0", "epoch", 1, "key", SPEC, 512, 2048)
GROUPS, PROMPT_LEN = 57, 256  # prompts share their first half with those of their group


def make_step(num_running: int) -> StepStarted:
    """Decodes over 500 tokens of context, half of them online, whose next tokens are due in 100 to 250 ms."""
    ids = [f"batch_1.{n}" if n % 2 else f"chatcmpl-{n:032x}" for n in range(num_running)]
    due_ms = [math.inf if n % 2 else 100.0 + n * 97 % 150 for n in range(num_running)]
    entries = [ScheduledRequest(each, Kind(n % 2), 1) for n, each in enumerate(ids)]
    states = [Request(each, Kind(n % 2), 501, 700, 500, 32, deadline_ms=due_ms[n]) for n, each in enumerate(ids)]
    pace = Pace(batch_size=512)
    return StepStarted("executor-0", "epoch", 7, PlanSource.PLAN, False, entries, states, [], 20_000, pace=pace)


def measure(
    kind: str, model: LatencyModel, order: str, num_running: int, num_waiting: int, policy: Policy, rounds: int
) -> Row:
    """Milliseconds by the clock, and of this thread's CPU time, without what else runs. ``kind``: of latency model."""
    pool, half = make_pool(order), PROMPT_LEN // 2
    numbers = range(1, num_waiting + num_running)
    pool.add([offline_request(n, [n % GROUPS] * half + [n] * half) for n in numbers])
    times = Times(processor_s=time.thread_time)

    def plan(scheduler: Scheduler, message: StepStarted) -> None:
        scheduler.on_step(message)
        (planned,) = scheduler.plan()
        encode(planned)
        assert len(planned.entries) >= (num_running if policy is not TIGHT else num_running // 2)

    info = replace(INFO, strategy=STRATEGIES.get(policy, Strategy()))
    for _ in range(rounds):
        scheduler = Scheduler(info, pool, lambda: (policy, model), SystemClock())
        times.time(partial(plan, scheduler, make_step(num_running)))
    clock_ms = sorted(times.clock_ms)
    return {
        "packing": policy.packing,
        "model": kind,
        "order": order,
        "running": str(num_running),
        "waiting": str(num_waiting),
        **quantiles(clock_ms, {"p50 ms": 0.5, "p99 ms": 0.99}, digits=3),
        **quantiles(sorted(times.cpu_ms), {"p99 CPU ms": 0.99}, digits=3),
        "max ms": f"{clock_ms[-1]:.3f}",
    }


@benchmark
def main(rounds: int = 1000) -> Results:
    collect_seldom()
    for order, num_running, num_waiting in product(ORDERS, (16, 64, 256), (100, 10_000)):
        yield measure("linear", LINEAR, order, num_running, num_waiting, HELD, rounds)
    curves = fitted_model(Machine("llama2-7b", "a100-40g"))
    for policy, num_running in product((HELD, DEADLINES, KV_AWARE, MIXED), (64, 256)):
        order = "kv-aware" if policy is KV_AWARE else "psm-fair"
        yield measure("boosted", curves, order, num_running, 10_000, policy, rounds)
    for policy, num_running in product((KV_AWARE, MIXED, TIGHT), (64, 256)):
        order = "kv-aware" if policy is KV_AWARE else "psm-fair"
        kind = "linear, tight" if policy is TIGHT else "linear"
        yield measure(kind, LINEAR, order, num_running, 10_000, policy, rounds)
