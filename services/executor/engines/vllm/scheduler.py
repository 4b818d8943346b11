"""A scheduler for vLLM's engine core that decides nothing: each step is the one that our executor has planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.executor.engines.sampling.prompt_scores import with_scores
from services.executor.engines.sampling.sampler import NO_TOKEN, NOT_FINITE, read_logprobs
from services.executor.engines.torch.embeddings import with_embeddings
from services.executor.engines.vllm.runner_mirror import FIRST_BLOCK, RunnerMirror
from shared.replica.engine import SampledTokens, Sequence


def _says(value: object) -> Callable[..., Any]:
    """A method of vLLM's interface that always returns ``value``."""
    return lambda self, *args, **named: value


def _never(why: str) -> Callable[..., Any]:
    """A method of vLLM's interface that nobody calls here."""

    def method(self: PlannedScheduler, *args: Any, **named: Any) -> Any:
        raise NotImplementedError(why)

    return method


class PlannedScheduler(SchedulerInterface):
    """``tell`` gives what vLLM's workers run in a step, ``settle`` takes what came out. It holds no requests, no KV
    blocks and no queue: those are the executor's, in ``shared.scheduling``."""

    connector = None
    ec_connector = None

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *, block_size: int, **others: Any) -> None:
        """The engine core makes it, as it makes its own."""
        self.kv_cache_config = kv_cache_config
        self.num_blocks: int = kv_cache_config.num_blocks - FIRST_BLOCK
        self.block_size = block_size
        self._mirror = RunnerMirror(vllm_config, self.num_blocks, block_size)

    def tell(self, sequences: list[Sequence]) -> SchedulerOutput:
        """See ``RunnerMirror.tell``."""
        return self._mirror.tell(sequences)

    def settle(self, sequences: list[Sequence], output: ModelRunnerOutput) -> SampledTokens:
        """The step ended well, with these tokens."""
        tokens = SampledTokens({}, {})
        for sequence in sequences:
            if sequence.needs_sample:
                row = output.req_id_to_index[sequence.request_id]
                token_id = output.sampled_token_ids[row][0]
                if token_id == NO_TOKEN:
                    tokens.failed[sequence.request_id] = NOT_FINITE
                    continue
                tokens.token_ids[sequence.request_id] = token_id
                if sequence.sampling.logprobs is not None:
                    gathered = (output.logprobs.logprob_token_ids[row].tolist(), output.logprobs.logprobs[row].tolist())
                    tokens.logprobs[sequence.request_id] = read_logprobs(*gathered, sequence.sampling.logprobs)
        self._mirror.settle(tokens.token_ids)
        of_prompts = dict(output.prompt_logprobs_dict)
        embedded = [each.request_id for each in sequences if each.needs_embedding]
        embeddings = {request_id: of_prompts.pop(request_id) for request_id in embedded}
        return with_embeddings(with_scores(tokens, of_prompts), embeddings)

    @property
    def pause_state(self) -> PauseState:
        return PauseState.UNPAUSED

    # What vLLM asks of its own scheduler, and never finds here.
    has_requests = has_finished_requests = _says(False)
    get_num_unfinished_requests = _says(0)
    get_request_counts = _says((0, 0))
    get_grammar_bitmask = make_stats = reset_encoder_cache = shutdown = _says(None)
    reset_prefix_cache = _says(True)  # prefixes are found by the executor's pool
    schedule = _never("steps are planned by the executor")
    update_from_output = _never("steps are settled by the executor")
    add_request = _never("requests come by tell")
    finish_requests = _never("requests end on the executor")
    set_pause_state = _never("the executor decides what runs")
    update_draft_token_ids = _never("there is no speculative decoding")
    update_draft_token_ids_in_output = _never("there is no speculative decoding")
