"""A scheduler for vLLM's engine core that decides nothing: each step is the one that our executor has planned."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

from services.executor.engines.torch.logprobs import read_logprobs
from services.executor.engines.vllm.runner_mirror import FIRST_BLOCK, RunnerLimits, RunnerMirror
from services.executor.settings import OWN_ATTENTION
from shared.protocol.tokens import TokenLogprobs
from shared.replica.engine import SampledTokens, Sequence

ATTENTION_KEY = "slackwater_attention"  # in vLLM's additional_config: one of VLLM_ATTENTIONS


class PlannedScheduler(SchedulerInterface):
    """``tell`` gives what vLLM's workers run in a step, ``settle`` takes what came out. It holds no requests, no KV
    blocks and no queue: those are the executor's, in ``shared.scheduling``."""

    connector = None
    ec_connector = None

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *, block_size: int, **others: Any) -> None:
        """The engine core makes it, as it makes its own."""
        model_config, sizes = vllm_config.model_config, vllm_config.scheduler_config
        self.kv_cache_config = kv_cache_config
        self.num_blocks: int = kv_cache_config.num_blocks - FIRST_BLOCK
        self.block_size = block_size
        self._mirror = RunnerMirror(
            RunnerLimits(
                self.num_blocks,
                block_size,
                model_config.max_model_len,
                model_config.get_vocab_size(),
                sizes.max_num_seqs,
                sizes.max_num_batched_tokens,
                vllm_config.additional_config.get(ATTENTION_KEY) == OWN_ATTENTION,
            ),
            vllm_config.parallel_config.pipeline_parallel_size,
        )

    def tell(self, sequences: list[Sequence]) -> SchedulerOutput:
        """See ``RunnerMirror.tell``."""
        return self._mirror.tell(sequences)

    def settle(self, sequences: list[Sequence], output: ModelRunnerOutput) -> SampledTokens:
        """The step ended well, with these tokens."""
        index, rows = output.req_id_to_index, output.sampled_token_ids
        sampled = {
            sequence.request_id: rows[index[sequence.request_id]][0] for sequence in sequences if sequence.needs_sample
        }
        self._mirror.settle(sampled)
        asking = {s.request_id: s.sampling.logprobs for s in sequences if s.needs_sample}
        return SampledTokens(
            sampled,
            {
                request_id: _logprobs(output.logprobs, index[request_id], num_top)
                for request_id, num_top in asking.items()
                if num_top is not None
            },
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        raise NotImplementedError("steps are planned by the executor")

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> dict[int, Any]:
        raise NotImplementedError("steps are settled by the executor")

    def has_requests(self) -> bool:
        return False

    def has_finished_requests(self) -> bool:
        return False

    def get_num_unfinished_requests(self) -> int:
        return 0

    def get_request_counts(self) -> tuple[int, int]:
        return 0, 0

    @property
    def pause_state(self) -> PauseState:
        return PauseState.UNPAUSED

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> None:
        """Output is not constrained."""

    def make_stats(self) -> None:
        """The executor has its own."""

    def shutdown(self) -> None:
        """Nothing is held."""

    def reset_encoder_cache(self) -> None:
        """Text only."""

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Prefixes are found by the executor's pool."""
        return True

    def add_request(self, request: Any) -> None:
        raise NotImplementedError("requests come by tell")

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Any]:
        raise NotImplementedError("requests end on the executor")

    def set_pause_state(self, pause_state: PauseState) -> None:
        raise NotImplementedError("the executor decides what runs")

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        raise NotImplementedError("there is no speculative decoding")

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: SchedulerOutput) -> None:
        raise NotImplementedError("there is no speculative decoding")


def _logprobs(gathered: LogprobsLists, row: int, num_top: int) -> TokenLogprobs:
    return read_logprobs(gathered.logprob_token_ids[row].tolist(), gathered.logprobs[row].tolist(), num_top)
