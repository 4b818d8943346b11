"""What a GGUF file says of its model, and whether that is one of Llama's architecture."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.executor.gguf_tokenizer import Fields, why_no_tokenizer
from shared.errors import ModelError

ARCHITECTURE = "llama"
LAYER_PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_norm")
TENSOR = re.compile(
    r"(token_embd|output_norm|output|rope_freqs)\.weight" rf"|blk\.\d+\.({'|'.join(LAYER_PARTS)})\.weight"
)
KEPT = ("general.architecture", "llama.", "tokenizer.", "split.")  # of the fields
ROPE_FACTORS = "rope_freqs.weight"
LLAMA_3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALES = ("llama.rope.scaling.factor", "llama.rope.scale_linear")  # of older files the latter
TOLERANCE = 1e-3  # of those factors, which are float32


@dataclass(frozen=True, slots=True)
class GgufFile:
    """``rope_factors``: by which each frequency of the rotary embedding is divided; None where it is not changed."""

    path: Path
    fields: Fields
    tensors: list[str]
    rope_factors: list[float] | None

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Without its weights. Raises ModelError where it is no GGUF file, or a torn one."""
        from gguf import GGUFReader

        try:
            reader = GGUFReader(path)
            fields = {name: field.contents() for name, field in reader.fields.items() if name.startswith(KEPT)}
            factors = next((each.data.tolist() for each in reader.tensors if each.name == ROPE_FACTORS), None)
            return cls(path, fields, [tensor.name for tensor in reader.tensors], factors)
        except Exception as error:  # struct.error, IndexError, UnicodeDecodeError ...: whatever the bytes lead to
            raise ModelError(f"{path} cannot be read as GGUF: {error!r}") from error

    def require_llama(self) -> None:
        """Raises ModelError where a folder made of it would be another model."""
        why = self._why_not()
        if why is not None:
            raise ModelError(f"{self.path} cannot be converted: {why}; choose the folder of the model in safetensors")

    def rope_parameters(self) -> dict[str, Any] | None:
        """Of transformers' config, where ``rope_factors`` are Llama 3's; None where they are not changed."""
        if self.rope_factors is None:
            return None
        theta = float(self.fields.get("llama.rope.freq_base", 10_000.0))
        parameters: dict[str, Any] = {"rope_type": "llama3", "rope_theta": theta, "factor": max(self.rope_factors)}
        return parameters | LLAMA_3_ROPE

    def _why_not(self) -> str | None:
        architecture = self.fields.get("general.architecture")
        if architecture != ARCHITECTURE:
            return f"its architecture is {architecture}, and only {ARCHITECTURE} is read from GGUF"
        other = next((name for name in self.tensors if not TENSOR.fullmatch(name)), None)
        if other is not None:
            return f"it has the tensor {other}, which a plain Llama has not"
        num_files = self.fields.get("split.count", 1)
        if num_files > 1:
            return f"it is one of {num_files} files that are the model together"
        lacking = next((name for name in self._needed() if name not in self.tensors), None)
        if lacking is not None:
            return f"it lacks the tensor {lacking}"
        is_scaled = any(self.fields.get(name, 1.0) not in (0.0, 1.0) for name in SCALES)
        scaling = self.fields.get("llama.rope.scaling.type", "linear" if is_scaled else "none")  # as llama.cpp has it
        if scaling != "none" or not self._has_known_rope():
            return f"its rotary embedding is scaled ({scaling}) in a way that is not read from GGUF"
        return why_no_tokenizer(self.fields)

    def _needed(self) -> Iterator[str]:
        """The tensors that every Llama has; without an output layer the embeddings of tokens stand in its place."""
        yield from ("token_embd.weight", "output_norm.weight")
        for layer in range(self.fields.get("llama.block_count", 0)):
            yield from (f"blk.{layer}.{part}.weight" for part in LAYER_PARTS)

    def _has_known_rope(self) -> bool:
        """Whether ``rope_parameters`` say what the factors do (as llama.cpp writes them for Llama 3.1 and later)."""
        parameters, factors = self.rope_parameters(), self.rope_factors
        if parameters is None or factors is None:
            return True
        low, high = LLAMA_3_ROPE["low_freq_factor"], LLAMA_3_ROPE["high_freq_factor"]
        context, dim = LLAMA_3_ROPE["original_max_position_embeddings"], 2 * len(factors)
        for index, factor in enumerate(factors):
            turns = context / (2 * math.pi * parameters["rope_theta"] ** (2 * index / dim))
            smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
            expected = 1 / ((1 - smooth) / parameters["factor"] + smooth)
            if not math.isclose(factor, expected, rel_tol=TOLERANCE):
                return False
        return True
