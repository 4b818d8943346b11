"""Greedy outputs of the torch engine on a device, against transformers on the CPU in float32.

Requests of several lengths run in random mixes and chunks, over scattered and shared blocks, some computed again. One
forward pass of transformers over a prompt and its output tells for each token whether it is the likeliest after what
stands before it, and where it is not, by how much its logit falls short: rounding may decide between near equals.
"""

import random
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.random_models import SMALL, SMALL_FAMILIES, save_random_model
from benchmarks.harness.table import Row
from services.executor.engines.torch.engine import TorchEngine
from shared.protocol.sampling import SamplingParams
from tests.services.executor.engines.engine_driver import EngineDriver, Request

NUM_REQUESTS, NUM_TOKENS = 8, 16
LONGEST_PROMPT = 150
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}  # of the largest logit
GRAPH_DECODES, GRAPH_TOKENS = 8, 64
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "graphs": {"max_graph_decodes": GRAPH_DECODES, "max_graph_tokens": GRAPH_TOKENS},
    "one launch": {"fused_attention": True},
}


@dataclass(slots=True)
class Agreement:
    """``shortfall``: the largest, of the largest logit of its row."""

    num_tokens: int = 0
    num_likeliest: int = 0
    shortfall: float = 0.0

    def count(self, logits: torch.Tensor, output: list[int]) -> None:
        """``logits``: [len(output), vocab_size], before each token."""
        largest = logits.amax(-1)
        missing = largest - logits[torch.arange(len(output)), output]
        self.num_tokens += len(output)
        self.num_likeliest += int((missing == 0).sum())
        self.shortfall = max(self.shortfall, float((missing / logits.abs().amax(-1)).max()))


def parity(device: str, models: Mapping[str, Path], tiny: bool = False) -> Generator[Row | str, None, str]:
    """A row for each model, dtype and way; ``models`` by name, beside small ones with random weights; ``tiny``: of only
    one. Raises AssertionError at the end where a shortfall is beyond rounding's."""
    yield f"{NUM_REQUESTS} requests, up to {NUM_TOKENS} tokens each, against transformers on the CPU in float32."
    beyond, num_tokens = [], 0
    with tempfile.TemporaryDirectory() as made:
        folders = dict(models)
        for family in list(SMALL_FAMILIES)[: 1 if tiny else None]:
            folders[f"{family}, small, random"] = Path(made) / family
            save_random_model(Path(made) / family, family, SMALL | SMALL_FAMILIES[family])
        for name, folder in folders.items():
            reference = _reference(folder)
            for dtype in ("float32",) if device == "cpu" else TOLERANCE:
                for way, options in WAYS.items():
                    if device == "cpu" and way != "plain":
                        continue
                    met = _agreement(folder, reference, device, dtype, options)
                    num_tokens += met.num_tokens
                    yield _row(name, dtype, way, met)
                    if met.shortfall > TOLERANCE[dtype]:
                        beyond.append(f"{name} {dtype} {way}")
    assert not beyond, f"tokens that are not the likeliest: {', '.join(beyond)}"
    return f"{num_tokens} tokens are transformers'"


def _reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _agreement(folder: Path, reference: Any, device: str, dtype: str, options: dict[str, Any]) -> Agreement:
    rng = random.Random(0)
    engine = TorchEngine.load(folder, "parity", device, dtype, block_size=16, num_blocks=160, **options)
    try:
        if "max_graph_decodes" in options:
            assert engine.graph_sizes and engine.piece_sizes, "no graph could be recorded"
        vocabulary = range(2, engine.spec.vocab_size)
        prompts = [rng.choices(vocabulary, k=rng.randint(1, LONGEST_PROMPT)) for _ in range(NUM_REQUESTS)]
        greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
        requests = [Request(f"r{number}", prompt, greedy) for number, prompt in enumerate(prompts)]
        outputs = EngineDriver(engine, seed=1, max_tokens=100, drop=0.05).run(requests)
    finally:
        engine.close()
    met = Agreement()
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        met.count(logits, output)
    return met


def _row(model: str, dtype: str, way: str, met: Agreement) -> Row:
    return {
        "model": model,
        "dtype": dtype,
        "way": way,
        "tokens": str(met.num_tokens),
        "the likeliest": str(met.num_likeliest),
        "largest shortfall": f"{met.shortfall:.1e}",
    }
