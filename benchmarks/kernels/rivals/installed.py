"""Whose attention can stand beside ours here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.kernels.work import Attention, Work

MODULES = {
    "SDPA": "sdpa",
    "FlashInfer": "flashinfer",
    "vLLM's FlashAttention": "vllm_flash",
    "vLLM's Triton": "vllm_triton",
}


@dataclass(frozen=True, slots=True)
class Rivals:
    """``missing``: why those are not there that are not."""

    attentions: Mapping[str, Callable[[Work], Attention]]
    missing: Mapping[str, str]

    @classmethod
    def installed(cls, device: str) -> Rivals:
        """On a CPU only torch's: libraries for GPUs are not even imported there."""
        attentions, missing = {}, {}
        for name, module in MODULES.items():
            if device == "cpu" and name != "SDPA":
                missing[name] = "needs a GPU"
                continue
            try:
                attentions[name] = importlib.import_module(f"{__package__}.{module}").attention
            except Exception as error:  # what is built for another GPU or torch fails as it likes
                missing[name] = reason(error)
        return cls(attentions, missing)


def reason(error: Exception) -> str:
    """In one line."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{error.name} is not installed"
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:200]
