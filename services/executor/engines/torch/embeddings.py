"""The embedding of a prompt: what its last token's hidden state is behind the last norm, of length 1."""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from services.executor.engines.sampling.sampler import NOT_FINITE
from shared.replica.engine import SampledTokens


def embeddings_of(hidden: torch.Tensor) -> list[bytes | None]:
    """Of each row of ``hidden`` [num_rows, hidden_size], as of ``Engine.execute``; None where it is not finite."""
    rows = F.normalize(hidden.float(), dim=-1)
    finite = (torch.isfinite(hidden) & torch.isfinite(rows)).all(dim=-1).tolist()
    values = rows.cpu().numpy().astype("<f4", copy=False)
    return [row.tobytes() if is_finite else None for row, is_finite in zip(values, finite, strict=True)]


def with_embeddings(sampled: SampledTokens, embeddings: Mapping[str, bytes | None]) -> SampledTokens:
    """What a step gave, with embeddings by request id; one whose embedding is not finite has failed."""
    if not embeddings:
        return sampled
    failed = sampled.failed | {request_id: NOT_FINITE for request_id, packed in embeddings.items() if packed is None}
    known = {request_id: packed for request_id, packed in embeddings.items() if packed is not None}
    return replace(sampled, failed=failed, embeddings=known)
