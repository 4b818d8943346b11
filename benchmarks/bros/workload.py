"""The paper's requests: lengths of its Table 2, Poisson arrivals, and a backlog in waves (section 7.1)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.traces import TraceRequest

OFFLINE_PROMPT, OFFLINE_OUTPUT = (512, 1024), (32, 128)  # tokens, uniform
WAVE_SIZE = 64  # the paper does not say how many are submitted at a time


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, lognormal with this mean and this standard deviation."""

    mean: float
    deviation: float

    def draw(self, rng: random.Random) -> int:
        variance = math.log1p((self.deviation / self.mean) ** 2)
        return max(1, round(rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Conversations."""

    name: str
    prompt: Lengths
    output: Lengths

    def arrivals(self, rate: float, duration_s: float, seed: int) -> list[TraceRequest]:
        """At ``rate`` requests/s. Those of a higher rate are others."""
        rng = random.Random(f"{self.name}:{rate}:{seed}")
        requests: list[TraceRequest] = []
        now_s = rng.expovariate(rate)
        while now_s < duration_s:
            requests.append(TraceRequest(now_s, self.prompt.draw(rng), self.output.draw(rng)))
            now_s += rng.expovariate(rate)
        return requests


SHAREGPT = Dataset("ShareGPT", Lengths(222.76, 256.36), Lengths(234.51, 268.50))
LMSYS = Dataset("LMSYS-Chat-1M", Lengths(90.50, 148.52), Lengths(237.04, 228.21))


def backlog(size: int, seed: int) -> list[OfflinePrompt]:
    """Prompts that share nothing."""
    rng = random.Random(f"backlog:{seed}")
    return [
        OfflinePrompt(rng.randint(*OFFLINE_OUTPUT), num_prompt_tokens=rng.randint(*OFFLINE_PROMPT)) for _ in range(size)
    ]
