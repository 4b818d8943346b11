"""Mixtures of request sets that have a wanted compute density and share so much of their computing (BlendServe A.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy

from benchmarks.lab.few_shots import token_ids_of
from benchmarks.lab.request_sets import BLOCK_TOKENS, RequestSet
from loadgen.errors import WorkloadError
from loadgen.workload.backlog import OfflinePrompt
from shared.latency.demand import Demand, DemandModel
from shared.scheduling.kv.block_hash import hash_chain

NOTHING = Demand()
ROUNDS = 3  # of counts, each with what the sets of the round before demand: what is shared depends on the counts


@dataclass(frozen=True, slots=True)
class Demanded:
    """What prompts demand of a device, sharing nothing and sharing all that they can, and in how many tokens."""

    whole: Demand = NOTHING
    computed: Demand = NOTHING
    num_prompt_tokens: int = 0
    num_shared_tokens: int = 0
    num_output_tokens: int = 0

    def __add__(self, other: Demanded) -> Demanded:
        return Demanded(
            self.whole + other.whole,
            self.computed + other.computed,
            self.num_prompt_tokens + other.num_prompt_tokens,
            self.num_shared_tokens + other.num_shared_tokens,
            self.num_output_tokens + other.num_output_tokens,
        )

    @property
    def density(self) -> float:
        """(1 - s) T_comp / T_mem."""
        return self.computed.density

    @property
    def sharing(self) -> float:
        """s, of the computing."""
        return 1 - self.computed.compute_ms / self.whole.compute_ms

    @property
    def shared_prompts(self) -> float:
        """Of the prompts' tokens, the share that is found in a prefix cache without bounds."""
        return self.num_shared_tokens / max(1, self.num_prompt_tokens)

    @property
    def num_tokens(self) -> int:
        """Prompts and outputs."""
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True)
class Mixture:
    """``parts``: of each set its prompts, sets one after another as they were submitted."""

    name: str
    parts: Sequence[Sequence[OfflinePrompt]]
    model: DemandModel

    @cached_property
    def prompts(self) -> list[OfflinePrompt]:
        """In the order of the sets."""
        return [prompt for part in self.parts for prompt in part]

    @cached_property
    def demanded(self) -> Demanded:
        return sum((demanded(part, self.model) for part in self.parts), Demanded())


@dataclass(frozen=True, slots=True)
class Recipe:
    """A compute density and a share of the computing that is shared, mixed of three sets by count."""

    density: float
    sharing: float

    def mix(self, name: str, sets: Sequence[RequestSet], size: int, model: DemandModel, seed: int) -> Mixture:
        """``size``: requests, of all sets. Raises WorkloadError where no mixture of these sets is like that."""
        counts = [size // len(sets)] * len(sets)
        for _ in range(ROUNDS):
            parts = [each.prompts(count, seed) for each, count in zip(sets, counts, strict=True)]
            counts = self._counts([demanded(part, model) for part in parts], counts, size)
        return Mixture(name, [each.prompts(count, seed) for each, count in zip(sets, counts, strict=True)], model)

    def _counts(self, sums: Sequence[Demanded], counts: Sequence[int], size: int) -> list[int]:
        """How many of each, by what one demands in the mean: two equations in the counts, and their sum."""
        means = [
            (each.whole.times(1 / count), each.computed.times(1 / count))
            for each, count in zip(sums, counts, strict=True)
        ]
        rows = [
            [computed.compute_ms - self.density * computed.memory_ms for _, computed in means],
            [(1 - self.sharing) * whole.compute_ms - computed.compute_ms for whole, computed in means],
            [1.0] * len(means),
        ]
        try:
            solved = numpy.linalg.solve(numpy.array(rows), numpy.array([0.0, 0.0, float(size)]))
        except numpy.linalg.LinAlgError:
            solved = numpy.array([-1.0])
        if min(solved) < 0.5:
            raise WorkloadError(
                f"these sets make no mixture of density {self.density:g} that shares {self.sharing:.0%}"
            )
        return [max(1, round(each)) for each in solved.tolist()]


def demanded(prompts: Iterable[OfflinePrompt], model: DemandModel) -> Demanded:
    """Of prompts that share their beginnings among each other, in whole blocks."""
    seen: set[object] = set()
    whole = computed = NOTHING
    num_prompt, num_shared, num_output = 0, 0, 0
    for prompt in prompts:
        num_tokens, blocks = _beginning(prompt)
        known = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        shared = min(known * BLOCK_TOKENS, num_tokens - 1)
        seen.update(blocks[known:])
        whole += model.request(num_tokens, prompt.max_tokens)
        computed += model.request(num_tokens, prompt.max_tokens, shared)
        num_prompt, num_shared = num_prompt + num_tokens, num_shared + shared
        num_output += prompt.max_tokens
    return Demanded(whole, computed, num_prompt, num_shared, num_output)


def _beginning(prompt: OfflinePrompt) -> tuple[int, Sequence[object]]:
    """Its tokens, and what its blocks are known by, of those that others may have too."""
    if prompt.num_prompt_tokens is None:
        token_ids = token_ids_of(prompt)
        return len(token_ids), hash_chain(token_ids, BLOCK_TOKENS)
    return prompt.num_prompt_tokens, hash_chain(prompt.block_ids, 1)
