"""What drawing K offline decodes of each step at random is good for (OOCO Alg. 2, lines 2 to 9): ``python -m
benchmarks.scheduling.mix_samples``.

A strict executor, step by step: online and offline requests decode, at lengths as of OOCO's Table 5 (OOC), and who ends
makes room for a new one. A step takes as long as the roofline model says, and no longer than S with offline decodes,
for which about half of the offline requests are too many. Waits are counted in steps.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.harness.command import Results, Row, benchmark, quantile
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.mix_decoding import MixDecodingPacking
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.table import RequestTable

LIMITS = Limits(block_size=16, num_blocks=1_000_000, max_num_batched_tokens=2048, max_num_seqs=1024)
MEAN_TOKENS = {Kind.ONLINE: (1892, 1063), Kind.OFFLINE: (1200, 672)}  # of prompt and output
SIGMA = 0.8  # of their logarithms


@dataclass(slots=True)
class Strict:
    """The executor. ``waits``: steps from one token of an offline request to the next, or from its beginning."""

    num_requests: dict[Kind, int]
    rng: random.Random
    table: RequestTable = field(default_factory=RequestTable)
    waits: list[int] = field(default_factory=list)
    num_tokens: int = 0
    _since: dict[str, int] = field(default_factory=dict)  # the step of an offline request's last token
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        for kind, number in self.num_requests.items():
            for _ in range(number):
                self._begin(kind, 0, is_under_way=True)

    def end_step(self, step: int, entries: Sequence[ScheduledRequest]) -> None:
        for entry in entries:
            request = self.table.get(entry.request_id)
            assert request is not None
            request.num_computed_tokens += 1
            request.num_tokens += 1
            request.num_blocks = -(-request.num_computed_tokens // LIMITS.block_size)
            if entry.kind is Kind.OFFLINE:
                self.num_tokens += 1
                self.waits.append(step - self._since[entry.request_id])
                self._since[entry.request_id] = step
            if request.num_tokens >= request.max_total_tokens:
                self.table.remove(entry.request_id)
                self._since.pop(entry.request_id, None)
                self._begin(entry.kind, step)

    def longest_wait(self, step: int) -> int:
        """Up to now, of those that wait still, too."""
        return max([*self.waits, *(step - since for since in self._since.values())])

    def _begin(self, kind: Kind, step: int, is_under_way: bool = False) -> None:
        prompt, output = (self._length(mean) for mean in MEAN_TOKENS[kind])
        num_computed = prompt + (self.rng.randrange(output) if is_under_way else 0)
        num_blocks = -(-num_computed // LIMITS.block_size)
        request_id = f"{kind.name.lower()}-{next(self._numbers)}"
        self.table.add(Request(request_id, kind, num_computed + 1, prompt + output + 1, num_computed, num_blocks))
        if kind is Kind.OFFLINE:
            self._since[request_id] = step

    def _length(self, mean: int) -> int:
        return max(1, round(self.rng.lognormvariate(math.log(mean) - SIGMA * SIGMA / 2, SIGMA)))


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens_per_s: float
    batch_size: float  # of offline decodes
    p99_wait: int
    longest_wait: int


def run(
    model: LatencyModel, num_samples: int, budget_ms: float, num_requests: dict[Kind, int], steps: int, seed: int
) -> Outcome:
    strict, packing, pace = Strict(num_requests, random.Random(seed)), MixDecodingPacking(), Pace()
    policy = Policy(budget_ms, packing="mix-decoding", role=Role.STRICT, mix_samples=num_samples)
    took_ms = 0.0
    for step in range(steps):
        state = StepState(strict.table, LIMITS.num_blocks, 0, LIMITS, policy, model, pace)
        schedule = packing.schedule(state, no_queue)
        strict.end_step(step, schedule.entries)
        took_ms += schedule.latency_ms
        pace = pace.after(schedule, LIMITS.max_num_seqs)
    p99 = int(quantile(sorted(strict.waits), 0.99))
    return Outcome(strict.num_tokens / took_ms * 1e3, strict.num_tokens / steps, p99, strict.longest_wait(steps))


@benchmark
def main(
    model: str = "llama3.1-8b",
    device: str = "a100-80g",
    budget_ms: float = 40.0,
    online: int = 80,
    offline: int = 200,
    steps: int = 4000,
    seeds: int = 5,
) -> Results:
    timed = RooflineLatencyModel.of(architecture_named(model), device_named(device))
    num_requests = {Kind.ONLINE: online, Kind.OFFLINE: offline}
    for num_samples in (0, 1, 2, 4, 8, 16, 32, 64):
        runs = [run(timed, num_samples, budget_ms, num_requests, steps, seed) for seed in range(seeds)]
        row: Row = {
            "K": str(num_samples),
            "offline tokens/s": f"{statistics.mean(each.tokens_per_s for each in runs):,.0f}",
            "offline decodes of a step": f"{statistics.mean(each.batch_size for each in runs):.0f} of {offline}",
            "p99 wait, steps": f"{statistics.mean(each.p99_wait for each in runs):.0f}",
            "longest wait": str(max(each.longest_wait for each in runs)),
        }
        yield row
