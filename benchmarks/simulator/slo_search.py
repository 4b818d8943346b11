"""What searches for a latency budget and an offline rate find and cost, in the simulator on one core:
``python -m benchmarks.simulator.slo_search --online TRACE --offline LENGTHS``.

Several SLOs on one workload, one search after another: the later ones share runs with those before. Without files,
arrivals and lengths like those of the Azure conversation trace are drawn.
"""

import time
from itertools import product

from benchmarks.harness.command import Results, benchmark
from benchmarks.lab.drawn import OfflineOption, OnlineOption, load_of
from benchmarks.lab.lab import HYGEN, STAR, Bench, Machine

SLOS = ("tbt_mean<=1.05x", "tbt_mean<=1.2x", "tbt_p99<=1.2x", "ttft_mean<=1.1x", "ttft_p99<=800ms")


@benchmark
def main(
    online: OnlineOption = None, offline: OfflineOption = None, duration: float = 600.0, qps: float = 2.0
) -> Results:
    bench = Bench(Machine(), load_of(online, offline, duration, qps, qps))
    for system, slo in product((HYGEN, STAR), SLOS):
        num_before, start_s = bench.num_trials(system), time.process_time()
        found = bench.largest(system, [slo])
        cpu_s, num_runs = time.process_time() - start_s, bench.num_trials(system) - num_before
        yield {
            "preset": system.preset,
            "SLO": slo,
            "largest": found.text_with_unit,
            "offline tokens/s": f"{found.measured.offline_tokens_per_s:.0f}",
            "new runs": str(num_runs),
            "CPU s": f"{cpu_s:.1f}",
        }
