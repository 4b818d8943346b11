"""What a sampler knows of one row of logits."""

from dataclasses import dataclass

from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How to sample one row: for the token that will stand at ``position`` of its request."""

    sampling: SamplingParams
    position: int
    history: TokenHistory | None = None  # present where the sampling adjusts the logits
    request_id: str = ""  # whose it is, where there is a history
