"""What one executor can hold and run."""

from dataclasses import dataclass

from shared.scheduling.request import Request

NO_PROMPT = "a prompt without tokens is nothing to go on from"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is fixed about one executor. Raises ValueError for a limit under 1, and for a negative time."""

    block_size: int  # tokens of a KV block
    num_blocks: int  # KV blocks in all
    max_num_batched_tokens: int  # C of HyGen Alg. 2: tokens of one step
    max_num_seqs: int  # requests of one step
    swap_ms_per_slot: float = 0.0  # what a KV slot takes from the host to the device

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.swap_ms_per_slot < 0:
            raise ValueError(f"swap_ms_per_slot must not be negative, not {self.swap_ms_per_slot:g}")


def why_never_held(request: Request, limits: Limits, max_model_len: int) -> str:
    """Why an executor with these limits and this context (tokens) can never complete it; empty if it can."""
    if not request.num_tokens:
        return NO_PROMPT
    if request.num_tokens >= max_model_len:
        return f"{request.num_tokens} tokens leave no room in the model's context of {max_model_len}"
    capacity = limits.num_blocks * limits.block_size
    num_tokens = min(request.max_total_tokens, max_model_len)
    if num_tokens > capacity:
        return f"up to {num_tokens} tokens do not fit the KV cache of {capacity} tokens"
    return ""
