"""Planning time of one step against queue sizes: ``python -m benchmarks.planning``.

A plan of HyGen Alg. 2 as the offline-queue makes it: the executor's word taken over, the running step's outcome
assumed, both phases scheduled, the message made. Half of the running requests are online. The latency model is linear;
the last rows plan with a boosted one, fitted to batches of a simulated schedule, and by deadlines (BROS).
"""

from __future__ import annotations

import argparse
import math
import random
import time
from itertools import product

from benchmarks.figures import print_table, quantile
from benchmarks.schedules import boosted_model
from services.offline_queue.garbage import collect_seldom
from services.profiler.simulation.setup import Machine
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.protocol.codec import decode, encode
from shared.protocol.messages import EngineSpec, ExecutorInfo, GenerateRequest, OfflineRequest, PlanSource, StepStarted
from shared.protocol.sampling import SamplingParams
from shared.replica.offline_pool import OfflinePool
from shared.replica.scheduler import AsyncScheduler
from shared.scheduling.batch import Policy, ScheduledRequest
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.registry import OfflineOrderKnobs, make_offline_order
from shared.scheduling.packing.pace import Pace
from shared.scheduling.request import Kind, Request

LINEAR = LinearLatencyModel(10.0, 0.07, 0.0004, 1e-7, 1e-12, 0.05, 0.05, 3e-6)
HELD, DEADLINES = Policy(100.0), Policy(packing="deadline")
SPEC = EngineSpec("m", "sim", "none", "float16", 4096, 49_152, 16, 40_000, (2,))
INFO = ExecutorInfo("executor-0", "epoch", 1, "key", SPEC, 512, 2048)
ORDERS = ("fcfs", "psm", "psm-fair")


def make_offline(number: int, prompt_len: int) -> OfflineRequest:
    request_id = f"batch_1.{number}"
    sampling = SamplingParams(max_tokens=128)
    prompt = [number % 57] * (prompt_len // 2) + [number] * (prompt_len - prompt_len // 2)  # 57 prefixes, each of many
    generate = GenerateRequest(request_id, Kind.OFFLINE, prompt, sampling, 0.0)
    return OfflineRequest(generate, "batch_1", number, f"custom-{number}", "m")


def make_step(num_running: int) -> StepStarted:
    """``num_running`` decodes over 500 tokens of context, half of them online, whose next tokens are due in 100 to
    250 ms."""
    ids = [f"batch_1.{n}" if n % 2 else f"chatcmpl-{n:032x}" for n in range(num_running)]
    entries = [ScheduledRequest(request_id, Kind(n % 2), 1) for n, request_id in enumerate(ids)]
    due_ms = [math.inf if n % 2 else 100.0 + n * 97 % 150 for n in range(num_running)]
    states = [
        Request(request_id, Kind(n % 2), 501, 700, 500, 32, deadline_ms=due_ms[n]) for n, request_id in enumerate(ids)
    ]
    return StepStarted(
        "executor-0", "epoch", 7, PlanSource.PLAN, False, entries, states, [], 20_000, pace=Pace(batch_size=512)
    )


def measure(
    order: str, num_running: int, num_waiting: int, rounds: int, model: LatencyModel, policy: Policy
) -> tuple[list[float], list[float]]:
    """Milliseconds of each planning, fastest first: by the clock, and of this thread's CPU time, which leaves out
    what else the machine does."""
    made = make_offline_order(order, OfflineOrderKnobs(), iter(random.Random(1).random, None))
    pool = OfflinePool(FairShare(made), lambda: None, lambda _, __: None)
    pool.add([make_offline(n, 256) for n in range(1, num_waiting + num_running, 1)])

    def tuning() -> tuple[Policy, LatencyModel]:
        return policy, model

    encoded = encode(make_step(num_running))
    times, cpu_times = [], []
    for _ in range(rounds):
        scheduler = AsyncScheduler(INFO, pool, tuning, SystemClock())
        message = decode(encoded, StepStarted)
        start, cpu_start = time.perf_counter(), time.thread_time()
        (plan,), _ = scheduler.on_step(message)
        encode(plan)
        times.append((time.perf_counter() - start) * 1e3)
        cpu_times.append((time.thread_time() - cpu_start) * 1e3)
        assert len(plan.entries) >= num_running
    return sorted(times), sorted(cpu_times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    collect_seldom()
    runs: list[tuple[str, LatencyModel, str, int, int, Policy]] = [
        ("linear", LINEAR, *each, HELD) for each in product(ORDERS, (16, 64, 256), (100, 10_000))
    ]
    curves = boosted_model(Machine("llama2-7b", "a100-40g"))
    runs += [
        ("boosted", curves, "psm-fair", num_running, 10_000, policy)
        for policy in (HELD, DEADLINES)
        for num_running in (64, 256)
    ]
    rows = []
    for kind, model, order, num_running, num_waiting, policy in runs:
        times, cpu_times = measure(order, num_running, num_waiting, rounds, model, policy)
        figures = [quantile(times, q) for q in (0.5, 0.99)] + [quantile(cpu_times, 0.99), times[-1]]
        rows.append(
            [policy.packing, kind, order, str(num_running), str(num_waiting), *(f"{figure:.3f}" for figure in figures)]
        )
    print_table(["packing", "model", "order", "running", "waiting", "p50 ms", "p99 ms", "p99 CPU ms", "max ms"], rows)


if __name__ == "__main__":
    main()
