"""How probable the model found the tokens of prompts, from what a step computes of the tokens before them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from services.executor.engines.sampling.sampler import LEAST, NOT_FINITE, SLICE_LOGITS
from shared.replica.engine import SampledTokens

Logits = Callable[[torch.Tensor], torch.Tensor]  # of hidden states [num_rows, hidden_size]: [num_rows, vocab_size]


def score_tokens(logits_of: Logits, hidden: torch.Tensor, token_ids: Sequence[int], num_top: int) -> bytes | None:
    """Records of ``shared.protocol.prompt_scores``, with ``num_top`` most probable tokens each. ``hidden``
    [num_tokens, hidden_size]: of the token before each of ``token_ids``, as the output layer takes it. None where a
    logit is not finite."""
    targets = torch.tensor(token_ids, device=hidden.device)
    parts, start, num_rows = [], 0, 1  # the first one tells how large the vocabulary is
    while start < len(targets):
        logits = logits_of(hidden[start : start + num_rows])
        part = _records(logits.float(), targets[start : start + num_rows], num_top)
        if part is None:
            return None
        parts.append(part)
        start, num_rows = start + num_rows, max(1, SLICE_LOGITS // logits.shape[-1])
    return b"".join(parts)


def with_scores(sampled: SampledTokens, scores: Mapping[str, bytes | None]) -> SampledTokens:
    """What a step gave, with scores by request id; one whose scores are not finite has failed."""
    if not scores:
        return sampled
    failed = sampled.failed | {request_id: NOT_FINITE for request_id, packed in scores.items() if packed is None}
    known = {request_id: packed for request_id, packed in scores.items() if packed is not None}
    return replace(sampled, failed=failed, prompt_scores=known)


def _records(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> bytes | None:
    """``logits`` [num_rows, vocab_size], float32; ``targets`` [num_rows]."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    if not torch.isfinite(total).all():
        return None
    own = logits.gather(1, targets[:, None])
    rank = (logits > own).sum(dim=-1, keepdim=True) + 1
    top = logits.topk(num_top, dim=-1)
    records = np.empty((len(targets), 2 + 2 * num_top), dtype="<i4")
    values = records.view("<f4")
    values[:, :1] = (own - total).clamp_(min=LEAST).cpu().numpy()
    records[:, 1:2] = rank.cpu().numpy()
    records[:, 2 : 2 + num_top] = top.indices.cpu().numpy()
    values[:, 2 + num_top :] = (top.values - total).clamp_(min=LEAST).cpu().numpy()
    return records.tobytes()
