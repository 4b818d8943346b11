"""From logits to tokens, and how probable the model found them. A token is a function of (seed, position, tokens so
far) alone, so a request that was preempted, split otherwise or moved to another executor goes on with the same ones."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.logits import NUMBERS, adjusted
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.seen_tokens import SeenTokens
from shared.protocol.sampling import SamplingParams
from shared.protocol.tokens import TokenLogprobs

FIRST_CANDIDATES = 256  # a nucleus rarely holds more; rows whose nucleus does look at eight times as many
NO_TOKEN = -1  # in tensors too, as vLLM hands them on
NOT_FINITE = "the model's logits are not finite"
SLICE_LOGITS = 1 << 24  # that are looked at at a time: 64 MB in float32
PIECE = 256  # of a row, where its maximum is looked for on a CPU
LEAST = -9999.0  # of log probabilities: OpenAI's word for next to impossible; JSON has no infinity

PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
LOW_32 = np.uint64(0xFFFFFFFF)
SHIFT_32 = np.uint64(32)


def sample(
    logits: torch.Tensor, rows: list[SampleRow], grammars: GrammarMasks | None = None, seen: SeenTokens | None = None
) -> list[int]:
    """One token id for each row of ``logits`` [num_rows, vocab_size]; NO_TOKEN for a row that is not finite.

    First what ``adjusted`` does, which needs ``grammars`` where a row has one. Then temperature 0 is greedy; else
    temperature, min_p, top_k, top_p in this order, and the inverse of the cumulative distribution at
    ``uniforms(seed, position)``."""
    has_ties = logits.dtype is not torch.float32  # also where another row's wishes make them float32
    logits = adjusted(logits, rows, grammars, seen)
    top, chosen = _greatest(logits)
    tokens: list[int] = chosen.masked_fill_(~torch.isfinite(top), NO_TOKEN).tolist()
    random = [i for i, row in enumerate(rows) if row.sampling.temperature > 0 and tokens[i] != NO_TOKEN]
    vocab_size = logits.shape[-1]
    for whole in _in_slices([i for i in random if not _is_truncated(rows[i].sampling, vocab_size)], vocab_size):
        _store(tokens, whole, _draw_whole(_scaled(logits, top, rows, whole), _uniforms_of(rows, whole)))
    for truncated in _in_slices([i for i in random if _is_truncated(rows[i].sampling, vocab_size)], vocab_size):
        scaled = _scaled(logits, top, rows, truncated)
        _draw_truncated(scaled, rows, truncated, FIRST_CANDIDATES, tokens, has_ties)
    return tokens


def _greatest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``logits.max(dim=-1)``. On a CPU torch goes through a row number by number to know the place of its maximum; to
    find the piece that has it first takes a fifth of the time."""
    whole = logits.shape[-1] // PIECE * PIECE
    if logits.device.type != "cpu" or not whole:
        top, chosen = logits.max(dim=-1)
        return top, chosen
    pieces = logits[:, :whole].view(len(logits), whole // PIECE, PIECE)
    piece = pieces.amax(dim=-1).argmax(dim=-1)
    best = pieces[torch.arange(len(logits)), piece]
    first = piece * PIECE
    candidates, places = torch.cat([best, logits[:, whole:]], dim=-1).max(dim=-1)
    return candidates, torch.where(places < PIECE, first + places, whole + places - PIECE)


def gather_logprobs(
    logits: torch.Tensor, rows: list[SampleRow], tokens: list[int]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of the model's own ``logits`` [num_rows, vocab_size]: token ids (int64) and log probabilities (float32), both
    [num_rows, 1 + k] on the CPU. First the row's sampled token, then its most probable ones, as many as any row asks
    for; rows that ask for none, or have no token, hold zeros. None where no row asks."""
    asked = [None if token == NO_TOKEN else row.sampling.logprobs for row, token in zip(rows, tokens, strict=True)]
    wanting = [i for i, num_top in enumerate(asked) if num_top is not None]
    if not wanting:
        return None
    num_top = max(num_top for num_top in asked if num_top is not None)
    token_ids = torch.zeros(len(rows), 1 + num_top, dtype=torch.int64)
    logprobs = torch.zeros(len(rows), 1 + num_top)
    for part in _in_slices(wanting, logits.shape[-1]):
        index = torch.tensor(part, device=logits.device)
        shown, found = _with_most_probable(logits[index], [tokens[i] for i in part], num_top)
        token_ids[part], logprobs[part] = shown.cpu(), found.cpu()
    return token_ids, logprobs


def read_logprobs(token_ids: Sequence[int], logprobs: Sequence[float], num_top: int) -> TokenLogprobs:
    """One row of what ``gather_logprobs`` gave."""
    return TokenLogprobs(logprobs[0], list(token_ids[1 : 1 + num_top]), list(logprobs[1 : 1 + num_top]))


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position): Philox4x32-10 with the seed as key and the position as counter
    (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011)."""
    c0, c1 = positions & LOW_32, positions >> SHIFT_32
    c2, c3 = np.zeros_like(positions), np.zeros_like(positions)
    k0, k1 = seeds & LOW_32, seeds >> SHIFT_32
    for i in range(PHILOX_ROUNDS):
        round_k0 = (k0 + np.uint64(i * PHILOX_WEYL[0] & 0xFFFFFFFF)) & LOW_32
        round_k1 = (k1 + np.uint64(i * PHILOX_WEYL[1] & 0xFFFFFFFF)) & LOW_32
        p0, p1 = PHILOX_MULTIPLIERS[0] * c0, PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> SHIFT_32) ^ c1 ^ round_k0, p1 & LOW_32, (p0 >> SHIFT_32) ^ c3 ^ round_k1, p0 & LOW_32
    bits = (c0 << SHIFT_32 | c1) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _in_slices(indices: list[int], vocab_size: int) -> list[list[int]]:
    """Of rows, each as large as what is computed of their logits may be at a time."""
    num_rows = max(1, SLICE_LOGITS // vocab_size)
    return [indices[start : start + num_rows] for start in range(0, len(indices), num_rows)]


def _is_truncated(sampling: SamplingParams, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1.0


def _uniforms_of(rows: list[SampleRow], indices: list[int]) -> torch.Tensor:
    """[num_indices, 1], float64."""
    seeds = np.array([rows[i].sampling.seed & 0xFFFFFFFFFFFFFFFF for i in indices], dtype=np.uint64)
    positions = np.array([rows[i].position for i in indices], dtype=np.uint64)
    return torch.from_numpy(uniforms(seeds, positions))[:, None]


def _scaled(logits: torch.Tensor, top: torch.Tensor, rows: list[SampleRow], indices: list[int]) -> torch.Tensor:
    """Log weights [num_indices, vocab_size], float32, whose largest is 0: no temperature overflows them."""
    temperatures = torch.tensor([rows[i].sampling.temperature for i in indices], device=logits.device)
    temperatures.clamp_(min=NUMBERS.tiny)  # less is 0 in float32, or taken for it by some devices
    index = torch.tensor(indices, device=logits.device)
    scaled = (logits[index].float() - top[index, None].float()) / temperatures[:, None]
    min_ps = [rows[i].sampling.min_p for i in indices]
    if any(min_ps):
        least = torch.tensor(min_ps, device=logits.device).log()
        scaled.masked_fill_(scaled < least[:, None], -math.inf)
    return scaled


def _draw_whole(scaled: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """From the whole vocabulary, cumulated in the order of the token ids."""
    cumulative = scaled.double().exp_().cumsum_(dim=-1)
    target = uniform.to(scaled.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=scaled.shape[-1] - 1)[:, 0]


def _draw_truncated(
    scaled: torch.Tensor,
    rows: list[SampleRow],
    indices: list[int],
    num_candidates: int,
    tokens: list[int],
    has_ties: bool,
) -> None:
    """From the most probable tokens, cumulated from the most probable down. ``has_ties``: many tokens are equally
    probable, as they are by logits of half precision."""
    vocab_size = scaled.shape[-1]
    top_ks = [min(rows[i].sampling.top_k or vocab_size, vocab_size) for i in indices]
    limited = [top_k for top_k in top_ks if top_k < vocab_size]
    num_candidates = min(max(num_candidates, *limited, 1), vocab_size)
    values, token_ids = _most_probable(scaled, num_candidates, has_ties)
    weights = values.double().exp_()
    top_k = torch.tensor(top_ks, device=scaled.device)[:, None]
    top_p = torch.tensor([rows[i].sampling.top_p for i in indices], dtype=torch.float64, device=scaled.device)[:, None]
    weights.masked_fill_(torch.arange(num_candidates, device=scaled.device) >= top_k, 0.0)
    cumulative = weights.cumsum(dim=-1)
    whole = torch.where(top_k < vocab_size, cumulative[:, -1:], scaled.double().exp().sum(dim=-1, keepdim=True))
    before = cumulative - weights
    kept = ((before < top_p * whole) & (weights > 0)).sum(dim=-1, keepdim=True).clamp_(min=1)  # a prefix of each row
    settled = (top_k <= num_candidates) | (cumulative[:, -1:] >= top_p * whole)
    target = _uniforms_of(rows, indices).to(scaled.device) * cumulative.gather(1, kept - 1)
    rank = torch.minimum(torch.searchsorted(cumulative, target, right=True), kept - 1)
    done = settled[:, 0].tolist() if num_candidates < vocab_size else [True] * len(indices)
    _store(tokens, [i for i, is_done in zip(indices, done, strict=True) if is_done], token_ids.gather(1, rank)[done, 0])
    open_rows = [row for row, is_done in enumerate(done) if not is_done]
    if open_rows:
        _draw_truncated(
            scaled[open_rows], rows, [indices[row] for row in open_rows], 8 * num_candidates, tokens, has_ties
        )


def _with_most_probable(logits: torch.Tensor, tokens: list[int], num_top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``gather_logprobs``, of rows that all have a token; on their device."""
    wanted, has_ties = logits.float(), logits.dtype is not torch.float32
    ranked = wanted - wanted.amax(dim=-1, keepdim=True) if has_ties else wanted
    _, top = _most_probable(ranked, num_top, has_ties)
    shown = torch.cat([torch.tensor(tokens, device=logits.device)[:, None], top], dim=-1)
    found = wanted.gather(1, shown) - wanted.logsumexp(dim=-1, keepdim=True)
    return shown, found.clamp_(min=LEAST)


def _most_probable(scaled: torch.Tensor, count: int, has_ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log weights, and ids of so many tokens, [num_rows, count]. With ties, of weights none of which is above 0, by
    probability, then by id: ``topk`` has them in an order that depends on how many are asked for, which is somebody
    else's affair."""
    if not has_ties:
        return scaled.topk(count, dim=-1)
    ids = torch.arange(scaled.shape[-1], device=scaled.device)
    ranks = (scaled.abs().view(torch.int32).long() << 32) | ids
    chosen = ranks.topk(count, dim=-1, largest=False).values & 0xFFFFFFFF
    return scaled.gather(1, chosen), chosen


def _store(tokens: list[int], indices: list[int], drawn: torch.Tensor) -> None:
    for i, token in zip(indices, drawn.tolist(), strict=True):
        tokens[i] = token
