"""Our sampling in the place of vLLM's: a token is a function of (seed, position, tokens so far) alone, as it is with
every engine."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

from services.executor.engines.grammar_masks import GrammarMasks
from services.executor.engines.sample_row import SampleRow
from services.executor.engines.torch.sampler import gather_logprobs, sample
from services.executor.engines.vllm.runner_mirror import NUM_PROMPT_TOKENS_KEY, SAMPLING_KEY
from shared.replica.engine import TokenHistory


class SeededSampler(torch.nn.Module):
    """Stands for ``runner.sampler``. The rows of the logits are those of the runner's batch; where a row's position
    is, and how it is sampled, are in the runner's requests."""

    def __init__(self, runner: Any, grammars: GrammarMasks) -> None:
        super().__init__()
        self._grammars = grammars
        self._runner = (runner,)  # in a tuple: torch would take a module in it for a part of this one

    def forward(self, logits: torch.Tensor, sampling_metadata: Any) -> SamplerOutput:
        """``logits``: [num_reqs, vocab_size]. Raises EngineError where a row has no number."""
        (runner,) = self._runner
        rows = [_row(runner.requests[request_id]) for request_id in runner.input_batch.req_ids]
        tokens = sample(logits, rows, self._grammars)
        sampled = torch.tensor(tokens, dtype=torch.int32, device=logits.device)
        gathered = gather_logprobs(logits, rows, tokens)
        logprobs = None if gathered is None else LogprobsTensors(*gathered, torch.zeros(len(rows), dtype=torch.int32))
        return SamplerOutput(sampled_token_ids=sampled[:, None], logprobs_tensors=logprobs)


def _row(request: Any) -> SampleRow:
    """``request``: as the runner keeps it. All its tokens are real where it was told how many belong to the prompt."""
    extra = request.sampling_params.extra_args
    num_prompt_tokens = extra[NUM_PROMPT_TOKENS_KEY]
    history = None
    if num_prompt_tokens is not None:
        history = TokenHistory(request.prompt_token_ids + request.output_token_ids, num_prompt_tokens)
    return SampleRow(extra[SAMPLING_KEY], request.num_tokens, history, request.req_id)
