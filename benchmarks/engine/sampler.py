"""What a batch's tokens cost beyond the forward pass: ``python -m benchmarks.engine.sampler``. The sampler alone, on
made-up logits of the default model's vocabulary, in processor time of one thread; histories are made up too, those of
grammars are what the sampler drew.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.harness.command import Results, benchmark, model_folder
from benchmarks.harness.turns import Times
from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import gather_logprobs, sample
from services.executor.engines.sampling.seen_tokens import SeenTokens
from shared.openai.grammars import JsonSchema, ResponseFormat, grammar_of
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer

NUM_PROMPT_TOKENS = 200
COST = "ms of processor time"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "greedy, presence and frequency penalties": {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.2},
    "greedy, logit_bias of 10 tokens": {"temperature": 0.0, "logit_bias": tuple((token, 1.0) for token in range(10))},
    "greedy, 5 log probabilities": {"temperature": 0.0, "logprobs": 5},
}
SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}


def make_rows(num_rows: int, num_output_tokens: int, vocab_size: int, **options: Any) -> list[SampleRow]:
    """Each with a history of its own where its sampling asks for one."""
    generator = torch.Generator().manual_seed(num_rows)
    shape = (num_rows, NUM_PROMPT_TOKENS + num_output_tokens)
    rows = []
    for seed, token_ids in enumerate(torch.randint(vocab_size, shape, generator=generator).tolist()):
        sampling = SamplingParams(max_tokens=1, seed=seed, **options)
        history = TokenHistory(token_ids, NUM_PROMPT_TOKENS) if sampling.adjusts_logits else None
        rows.append(SampleRow(sampling, len(token_ids), history, str(seed)))
    return rows


def cpu_ms(logits: torch.Tensor, rows: list[SampleRow], repeats: int) -> float:
    """The median of one call; what the rows have was seen in the one before, as in an engine."""
    times, seen = Times(processor_s=time.thread_time), SeenTokens()
    for _ in range(repeats):
        times.time(lambda: gather_logprobs(logits, rows, sample(logits, rows, None, seen)))
    return times.median_cpu_ms


def constrained_cpu_ms(logits: torch.Tensor, folder: Path, num_steps: int) -> float:
    """The median of one step of outputs that grow by a token a step, each in its own place of one grammar."""
    answer = ResponseFormat("json_schema", JsonSchema("answer", SCHEMA))
    grammar = grammar_of(answer, Tokenizer.from_folder(folder))
    grammars, times = GrammarMasks(folder), Times(processor_s=time.thread_time)
    outputs: list[list[int]] = [[] for _ in range(len(logits))]
    eos_token_ids = ModelFacts.read(folder).eos_token_ids
    samplings = [SamplingParams(max_tokens=1, seed=seed, grammar=grammar) for seed in range(len(logits))]
    for _ in range(num_steps):
        rows = [
            SampleRow(sampling, len(output), TokenHistory(list(output), 0), str(sampling.seed))
            for sampling, output in zip(samplings, outputs, strict=True)
        ]
        sampled = times.time(partial(sample, logits, rows, grammars))
        for output, token in zip(outputs, sampled, strict=True):
            output.append(token)
            if token in eos_token_ids:
                output.clear()
    grammars.close()
    return times.median_cpu_ms


@benchmark
def main(
    rows: int = 32,
    output_tokens: Annotated[int, typer.Option(help="That each request has so far.")] = 300,
    repeats: int = 100,
) -> Results:
    torch.set_num_threads(1)
    folder = model_folder()
    vocab_size = ModelFacts.read(folder).vocab_size
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 4
    for name, options in KINDS.items():
        made = make_rows(rows, output_tokens, vocab_size, **options)
        cpu_ms(logits, made, 3)
        yield {f"{rows} rows": name, COST: f"{cpu_ms(logits, made, repeats):.2f}"}
    constrained = constrained_cpu_ms(logits, folder, repeats)
    yield {f"{rows} rows": "temperature, a JSON schema", COST: f"{constrained:.2f}"}
