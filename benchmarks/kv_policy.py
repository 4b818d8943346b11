"""KV policies under memory pressure, in the simulator: ``python -m benchmarks.kv_policy``.

Online requests with the lengths of ShareGPT and offline ones of 512 to 1,024 tokens in and 32 to 128 out (BROS, section
7.1) on a named GPU whose KV cache is made small: what online requests wait and what offline requests get done, where
offline requests that give way are computed anew (lru), share blocks (bidirectional) or do not give way (keep-resident),
against online requests alone. With ``--preambles`` each online prompt begins with one of so many texts: what is cached
of them can be evicted by offline work, or last (priority).
"""

from __future__ import annotations

import argparse
import random

from benchmarks.figures import print_table
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.setup import Machine, make_strategy
from services.profiler.simulation.simulation import Simulation
from shared.scheduling.kv.policy import KV_POLICIES

PROMPT_TOKENS, PROMPT_DEVIATION = 222.76, 256.36  # ShareGPT, BROS table 2
OUTPUT_TOKENS, OUTPUT_DEVIATION = 234.51, 268.50
OFFLINE_PROMPT_RANGE, OFFLINE_OUTPUT_RANGE = (512, 1024), (32, 128)
BACKLOG_PER_S = 20  # more than can be served
PREAMBLE_TOKENS = 512


def gamma_length(rng: random.Random, mean: float, deviation: float) -> int:
    shape = (mean / deviation) ** 2
    return 1 + int(rng.gammavariate(shape, mean / shape))


def drawn_requests(rate: float, duration_s: float, num_preambles: int) -> list[TraceRequest]:
    """Poisson arrivals; lengths with the mean and the deviation of ShareGPT, behind a preamble where there are any."""
    rng, requests = random.Random(0), []
    preambles = random.Random(2)
    now_s = rng.expovariate(rate)
    while now_s < duration_s:
        prompt = gamma_length(rng, PROMPT_TOKENS, PROMPT_DEVIATION)
        output = gamma_length(rng, OUTPUT_TOKENS, OUTPUT_DEVIATION)
        if num_preambles:
            block = preambles.randrange(num_preambles)
            requests.append(TraceRequest(now_s, PREAMBLE_TOKENS + prompt, output, (block,), PREAMBLE_TOKENS))
        else:
            requests.append(TraceRequest(now_s, prompt, output))
        now_s += rng.expovariate(rate)
    return requests


def drawn_backlog(duration_s: float) -> list[OfflinePrompt]:
    rng = random.Random(1)
    return [
        OfflinePrompt(rng.randint(*OFFLINE_OUTPUT_RANGE), num_prompt_tokens=rng.randint(*OFFLINE_PROMPT_RANGE))
        for _ in range(int(BACKLOG_PER_S * duration_s))
    ]


def measure(plan: ReplayPlan, machine: Machine, preset: str, budget_ms: float | None) -> list[str]:
    """One run; its cells after the rate."""
    strategy = make_strategy(preset, budget_ms, None)
    simulation = Simulation(plan, machine.setup(strategy, 0), strategy, machine.url(strategy), NoProgress())
    simulation.run()
    report, phase = simulation.report(partial=False), simulation.phases["replay"]
    totals = phase.executor.replica.totals
    assert report.online is not None
    ttft, tbt = report.online.ttft_ms, report.online.tbt_ms
    return [
        machine.kv_policy if preset != "online-only" else "online alone",
        f"{ttft.mean or 0:.0f}",
        f"{ttft.p99 or 0:.0f}",
        f"{tbt.p99 or 0:.0f}",
        str(totals.finished_offline),
        f"{totals.offline_tokens / phase.now_s:.0f}",
        str(totals.prompt_tokens),
        str(totals.cached_tokens),
        str(totals.preemptions),
        str(totals.pauses),
        str(totals.checkpointed_slots),
        str(totals.restored_slots),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_policy", description=__doc__)
    parser.add_argument("--model", default="llama2-7b")
    parser.add_argument("--device", default="a100-40g")
    parser.add_argument("--kv-blocks", type=int, default=1000, help="of 16 tokens (default %(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 3.0, 4.0], help="online requests/s")
    parser.add_argument("--preambles", type=int, default=0, help="beginnings of online prompts, 512 tokens each")
    parser.add_argument("--budget-ms", type=float, default=50.0, help="of a step with offline work; 0 is none")
    parser.add_argument("--duration", type=float, default=300.0)
    options = parser.parse_args()
    preset, budget_ms = ("hygen", options.budget_ms) if options.budget_ms else ("sarathi++", None)
    rows = []
    for rate in options.rates:
        plan = ReplayPlan(
            requests=drawn_requests(rate, options.duration, options.preambles),
            prompts=drawn_backlog(options.duration),
            scaling=Scaling(duration_s=options.duration),
            model=options.model,
        )
        for kv_policy in KV_POLICIES:
            machine = Machine(options.model, options.device, kv_blocks=options.kv_blocks, kv_policy=kv_policy)
            rows.append([f"{rate:g}", *measure(plan, machine, preset, budget_ms)])
        rows.append([f"{rate:g}", *measure(plan, machine, "online-only", None)])
    header = ["online/s", "KV policy", "TTFT ms", "p99 TTFT ms", "p99 TBT ms", "offline done", "offline tokens/s"]
    header += ["prompt tokens computed", "found in the cache", "preemptions", "pauses", "slots out", "slots in"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
