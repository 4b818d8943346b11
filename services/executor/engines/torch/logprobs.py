"""How probable the model found tokens: from logits to log probabilities, of the rows that ask for them."""

from collections.abc import Sequence

import torch

from services.executor.engines.sample_row import SampleRow
from shared.protocol.tokens import TokenLogprobs

LEAST = -9999.0  # OpenAI's word for next to impossible; JSON has no infinity


def gather_logprobs(
    logits: torch.Tensor, rows: list[SampleRow], tokens: list[int]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of the model's own ``logits`` [num_rows, vocab_size]: token ids (int64) and log probabilities (float32), both
    [num_rows, 1 + k] on the CPU. First the row's sampled token, then its most probable ones, as many as any row asks
    for; rows that ask for none hold zeros. None where no row asks."""
    asked = [row.sampling.logprobs for row in rows]
    wanting = [i for i, num_top in enumerate(asked) if num_top is not None]
    if not wanting:
        return None
    chosen = torch.tensor([[tokens[i]] for i in wanting], device=logits.device)
    wanted = logits[torch.tensor(wanting, device=logits.device)].float()
    top = wanted.topk(max(num_top for num_top in asked if num_top is not None), dim=-1)
    found = torch.cat([wanted.gather(1, chosen), top.values], dim=-1) - wanted.logsumexp(dim=-1, keepdim=True)
    token_ids = torch.zeros(len(rows), found.shape[1], dtype=torch.int64)
    logprobs = torch.zeros(len(rows), found.shape[1])
    token_ids[wanting] = torch.cat([chosen, top.indices], dim=-1).cpu()
    logprobs[wanting] = found.clamp_(min=LEAST).cpu()
    return token_ids, logprobs


def read_logprobs(token_ids: Sequence[int], logprobs: Sequence[float], num_top: int) -> TokenLogprobs:
    """One row of what ``gather_logprobs`` gave."""
    return TokenLogprobs(logprobs[0], list(token_ids[1 : 1 + num_top]), list(logprobs[1 : 1 + num_top]))
