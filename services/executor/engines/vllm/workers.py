"""What each of vLLM's workers is told once, in its own process where there are several.

Workers that share a model meet in every layer, or pass each other what a stage computed. One that fails by itself
leaves the others waiting, or, a step later, taking one step's numbers for another's; and vLLM hears of a failure from
one worker only. So a worker that fails ends, which vLLM notices, and with it the engine.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import operator
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # on a CPU too

from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.prompt_scores import score_tokens
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import gather_logprobs, sample
from services.executor.engines.sampling.seen_tokens import SeenTokens
from services.executor.engines.torch.device import keep_freed_memory
from services.executor.engines.torch.embeddings import embeddings_of
from services.executor.engines.vllm.runner_mirror import (
    EMBEDDED_KEY,
    NUM_PROMPT_TOKENS_KEY,
    SAMPLING_KEY,
    SCORED_KEY,
    ScoredChunk,
)
from shared.errors import ConfigError, ModelError
from shared.replica.engine import TokenHistory

logger = logging.getLogger(__name__)

FAILED = 1  # exit status
RELIED_ON = (  # of what the model runner has once the model is loaded; its class does not tell
    "sampler",
    "requests",
    "model",
    "input_batch.block_table",
    "attn_groups",
    "compilation_config.static_forward_context",
    "intermediate_tensors",
    "query_start_loc.np",
)


def prepare_worker(worker: Any, has_peers: bool, model_path: Path) -> None:
    """Called in the worker's process by vLLM's ``collective_rpc``. Raises ConfigError for an unknown model runner,
    ModelError for weights that no kernel here multiplies."""
    runner = worker.model_runner
    check_runner(runner)
    _check_kernels(runner.model, model_path)
    if runner.device.type == "cpu":
        keep_freed_memory()
    grammars = GrammarMasks(model_path)
    runner.sampler = SeededSampler(runner, grammars)
    runner.execute_model = _compiling_grammars(runner.execute_model, grammars)
    runner._get_prompt_logprobs_dict = partial(read_prompts, runner)
    if not has_peers:
        return
    _end_with_parent()
    _make_stage_input(worker.model_runner)
    worker.execute_model = _ending_on_failure(worker.execute_model)
    worker.sample_tokens = _ending_on_failure(worker.sample_tokens)


def _check_kernels(model: torch.nn.Module, model_path: Path) -> None:
    """vLLM chooses its CPU kernel for weights of few bits also where the build for this CPU lacks it, and would fail at
    the first step."""
    if hasattr(torch.ops._C, "cpu_gemm_wna16"):
        return
    for module in model.modules():
        chosen_by = (getattr(module, "quant_method", None), getattr(module, "scheme", None))
        if any(isinstance(getattr(each, "kernel", None), CPUWNA16LinearKernel) for each in chosen_by):
            raise ModelError(
                f"vLLM cannot run the model in {model_path}: its weights are quantized to few bits, and on a CPU vLLM "
                "multiplies such only with AVX-512: choose the model with full weights, or another machine"
            )


class SeededSampler(torch.nn.Module):
    """Samples as every engine does, in the place of ``runner.sampler``. The logits' rows are those of the runner's
    batch; their positions, and how they are sampled, are in the runner's requests."""

    def __init__(self, runner: Any, grammars: GrammarMasks) -> None:
        super().__init__()
        self._grammars = grammars
        self._seen = SeenTokens()
        self._runner = (runner,)  # in a tuple: torch would take a module in it for a part of this one

    def forward(self, logits: torch.Tensor, sampling_metadata: Any) -> SamplerOutput:
        """``logits``: [num_reqs, vocab_size]; NO_TOKEN where a row is not finite."""
        (runner,) = self._runner
        rows = [_sample_row(runner.requests[request_id]) for request_id in runner.input_batch.req_ids]
        tokens = sample(logits, rows, self._grammars, self._seen)
        sampled = torch.tensor(tokens, dtype=torch.int32, device=logits.device)
        gathered = gather_logprobs(logits, rows, tokens)
        logprobs = None if gathered is None else LogprobsTensors(*gathered, torch.zeros(len(rows), dtype=torch.int32))
        return SamplerOutput(sampled_token_ids=sampled[:, None], logprobs_tensors=logprobs)


def _sample_row(request: Any) -> SampleRow:
    """``request``: as the runner keeps it. All its tokens are real where it was told how many belong to the prompt."""
    extra = request.sampling_params.extra_args
    num_prompt_tokens = extra[NUM_PROMPT_TOKENS_KEY]
    history = None
    if num_prompt_tokens is not None:
        history = TokenHistory(request.prompt_token_ids + request.output_token_ids, num_prompt_tokens)
    return SampleRow(extra[SAMPLING_KEY], request.num_tokens, history, request.req_id)


def read_prompts(
    runner: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
) -> dict[str, bytes | None]:
    """What is asked of prompts, in the place of the runner's own log probabilities of them. ``hidden_states``
    [num_tokens, hidden_size], of the whole step."""
    step = runner, hidden_states, num_scheduled_tokens
    return score_prompts(*step) | embed_prompts(*step)


def embed_prompts(
    runner: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
) -> dict[str, bytes | None]:
    """Embeddings of the prompts whose last chunks were told with an EMBEDDED_KEY: by request id, as of
    ``embeddings_of``."""
    ends: dict[str, int] = {}
    for row, request_id in enumerate(runner.input_batch.req_ids):
        request = runner.requests[request_id]
        start: int | None = request.sampling_params.extra_args[EMBEDDED_KEY]
        if start is not None and request_id in num_scheduled_tokens and request.num_computed_tokens == start:
            ends[request_id] = int(runner.query_start_loc.np[row]) + num_scheduled_tokens[request_id]
    if not ends:
        return {}
    last = [end - 1 for end in ends.values()]
    return dict(zip(ends, embeddings_of(hidden_states[last]), strict=True))


def score_prompts(
    runner: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
) -> dict[str, bytes | None]:
    """Scores of the chunks of prompts that were told with a SCORED_KEY: by request id, as of ``score_tokens``."""
    scores: dict[str, bytes | None] = {}
    for row, request_id in enumerate(runner.input_batch.req_ids):
        request = runner.requests[request_id]
        chunk: ScoredChunk | None = request.sampling_params.extra_args[SCORED_KEY]
        if chunk is not None and request_id in num_scheduled_tokens and request.num_computed_tokens == chunk.start:
            first = int(runner.query_start_loc.np[row])
            hidden = hidden_states[first : first + len(chunk.token_ids)]
            scores[request_id] = score_tokens(runner.model.compute_logits, hidden, chunk.token_ids, chunk.num_top)
    return scores


def check_runner(runner: Any) -> None:
    """Raises ConfigError that names what is missing."""
    if not isinstance(runner, GPUModelRunner):
        raise ConfigError(f"vLLM's {type(runner).__qualname__} is not the model runner that the vllm engine knows")
    for path in RELIED_ON:
        try:
            operator.attrgetter(path)(runner)
        except AttributeError as error:
            raise ConfigError(f"vLLM's model runner is not as the vllm engine knows it: no {path}") from error


def _end_with_parent() -> None:
    """At once, whatever it waits for: vLLM's own watch ends a worker only between two steps."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child of the executor"

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(FAILED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _make_stage_input(runner: Any) -> None:
    """Where what the stage before sends is put. vLLM makes it when it warms the model up, which it leaves out where it
    runs eagerly with a given KV size. The first stage makes one that it does not use."""
    if runner.intermediate_tensors is None and hasattr(runner.model, "make_empty_intermediate_tensors"):
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
        )


def check_in_layers(worker: Any, check: Callable[[], None]) -> None:
    """Called by ``collective_rpc`` where the one worker runs in this process: ``check`` is called in each layer, by its
    attention, where vLLM's compiled graphs return to Python too, and may end a step by what it raises."""
    for layer in worker.model_runner.compilation_config.static_forward_context.values():
        layer.impl.forward = _checking(layer.impl.forward, check)


def _checking(attend: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
    def attend_after_check(*args: Any, **named: Any) -> Any:
        check()
        return attend(*args, **named)

    return attend_after_check


def _compiling_grammars(execute_model: Callable[..., Any], grammars: GrammarMasks) -> Callable[..., Any]:
    """Beside the forward pass, so that they are ready when it comes to sampling."""

    def compiling(scheduler_output: SchedulerOutput, *args: Any, **named: Any) -> Any:
        samplings = (new.sampling_params.extra_args[SAMPLING_KEY] for new in scheduler_output.scheduled_new_reqs)
        grammars.prefetch(sampling.grammar for sampling in samplings)
        return execute_model(scheduler_output, *args, **named)

    return compiling


def _ending_on_failure(call: Callable[..., Any]) -> Callable[..., Any]:
    def ending(*args: Any) -> Any:
        try:
            return call(*args)
        except Exception:
            logger.exception("a worker failed, and ends")
            os._exit(FAILED)

    return ending
