"""How large a step may be: as large as throughput asks, and no larger, since online tokens wait for whole steps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel

NEAR_BEST = 0.05  # a token may take so much longer than in the best step
PROMPT_TOKENS = 512  # of the prompts that are compared in chunks, whose pairs are the same however they are cut
CONTEXT = 512  # KV tokens of the decodes that are compared, where so many fit the cache
DIFFERENT = 2.0  # a new model's sizes within this factor of those that stand are no news


class StepSizes(msgspec.Struct, frozen=True):
    """Of one step, at most."""

    max_num_batched_tokens: int
    max_num_seqs: int

    def but(self, max_num_batched_tokens: int | None, max_num_seqs: int | None) -> StepSizes:
        """These, but for what is given; None and 0 are not."""
        return StepSizes(max_num_batched_tokens or self.max_num_batched_tokens, max_num_seqs or self.max_num_seqs)


USUAL = StepSizes(512, 256)  # while there is no latency model; a poor one must not choose less
LARGEST = StepSizes(8192, 1024)  # what vLLM takes on large GPUs
LARGEST_ON_CPU = StepSizes(2048, 512)


def largest_sizes(device: str) -> StepSizes:
    """That are chosen on this device, named as in a profile key."""
    return LARGEST_ON_CPU if device.startswith("cpu") else LARGEST


def chosen_sizes(model: LatencyModel, largest: StepSizes, num_kv_tokens: int) -> StepSizes:
    """From the usual ones to ``largest``, on an executor whose KV cache has room for ``num_kv_tokens``: the fewest
    tokens of prompts with which a token takes hardly longer than in the best step (Sarathi-Serve, section 4.2, whose
    chunk is to saturate the device), and the fewest decodes, which are no more than the tokens."""

    def prompts_ms(num_tokens: int) -> float:
        num_prompts, num_pairs = -(-num_tokens // PROMPT_TOKENS), num_tokens * PROMPT_TOKENS // 2
        return model.predict_ms(BatchFeatures(num_tokens, num_prompts, prefill_pairs=num_pairs))

    def decodes_ms(num_decodes: int) -> float:
        context = max(1, min(CONTEXT, num_kv_tokens // num_decodes))
        return model.predict_ms(
            BatchFeatures(decode_kv_tokens=num_decodes * context, decode_requests=num_decodes, longest_decode=context)
        )

    num_tokens = _knee(prompts_ms, USUAL.max_num_batched_tokens, largest.max_num_batched_tokens)
    num_seqs = _knee(decodes_ms, USUAL.max_num_seqs, largest.max_num_seqs)
    return StepSizes(num_tokens, min(num_seqs, num_tokens))


def is_news(chosen: StepSizes, standing: StepSizes) -> bool:
    """Whether they differ by so much that the standing ones are to go."""
    pairs = (
        (chosen.max_num_batched_tokens, standing.max_num_batched_tokens),
        (chosen.max_num_seqs, standing.max_num_seqs),
    )
    return any(max(pair) > DIFFERENT * min(pair) for pair in pairs)


def _knee(step_ms: Callable[[int], float], least: int, most: int) -> int:
    """The smallest of the sizes, each twice the one before, at which each takes hardly longer than it does at best."""
    sizes = [min(least, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    each_ms = [step_ms(size) / size for size in sizes]
    bound_ms = (1 + NEAR_BEST) * min(each_ms)
    return next(size for size, ms in zip(sizes, each_ms, strict=True) if ms <= bound_ms)
