"""What vLLM's model runner knows of the requests in its batch, and what it has to be told for the next one.

The runner keeps a row for each request of its last batches, as many as steps can be in flight: tokens, block table, and
the token that it sampled itself. A decode that goes on from there costs one line. Anything else (a first chunk, a later
one, a request that was held, preempted, or lost its sampled token to a stop string) is told as a new request, with
placeholders for the tokens whose KV is there, unless its sampling looks at them: nothing else does. So what the runner
holds is bounded by its last batches. A request is in one step in flight at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams as VllmSamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from services.executor.engines.vllm.adapters import ADAPTERS_KEY, lora_requests
from services.executor.settings import OWN_ATTENTION
from shared.errors import EngineError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence

PLACEHOLDER = 0  # a token id that nothing reads
FIRST_BLOCK = 1  # vLLM keeps its block 0 as the null block: our blocks begin after it
NOT_SAMPLED = SamplingParams(max_tokens=1, temperature=0.0)  # of a row whose token is dropped: the cheapest
SAMPLING_KEY = "slackwater"  # where a request's sampling lies in vLLM's extra_args
NUM_PROMPT_TOKENS_KEY = "slackwater_num_prompt_tokens"  # None where its tokens may be placeholders
SCORED_KEY = "slackwater_scored"  # what a chunk's tokens are scored for, a ScoredChunk; None: nothing is
EMBEDDED_KEY = "slackwater_embedded"  # where a chunk begins whose last token's state is asked for; None: it is not
ATTENTION_KEY = "slackwater_attention"  # in vLLM's additional_config: one of VLLM_ATTENTIONS
FILLS_RIGHT_KEY = "slackwater_fills_right"  # and which way it fills its blocks, for an attention that has directions


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Of the chunk that begins at the token ``start``, and of no other of its request."""

    start: int
    token_ids: list[int]  # that follow its first ones
    num_top: int


@dataclass(slots=True)
class _Row:
    """One request in the runner."""

    told: Sequence  # when it was new
    block_table: list[int]
    num_tokens: int  # that the runner knows, the last one its own
    batch: int = 0  # the last that it was in
    num_sampled: int = 0  # of its tokens
    last_token: int | None = None  # None: the runner has none, or it is not known what it has


class RunnerMirror:
    """Turns sequences into vLLM's SchedulerOutput: ``tell``, then the step, then ``settle`` where it went well. Of the
    steps in flight, one for each pipeline stage, each is told before the ones before it are settled."""

    def __init__(self, vllm_config: Any, num_blocks: int, block_size: int) -> None:
        """``num_blocks``: ours, without the null block."""
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._step_limits = vllm_config.scheduler_config
        self._has_directions = vllm_config.additional_config.get(ATTENTION_KEY) == OWN_ATTENTION
        self._adapters = {"": None, **lora_requests(vllm_config.additional_config.get(ADAPTERS_KEY, {}))}
        self._depth: int = vllm_config.parallel_config.pipeline_parallel_size
        self._batch = 0
        self._rows: dict[str, _Row] = {}

    def tell(self, sequences: list[Sequence]) -> SchedulerOutput:
        """What the runner is to run. Raises EngineError for a sequence that cannot be run; then nothing is told. After
        a step that failed, its rows are told anew."""
        self._check_step(sequences)
        known = {s.request_id: row for s in sequences if (row := self._rows.get(s.request_id)) and _goes_on(row, s)}
        for sequence in sequences:
            row = known.get(sequence.request_id)
            self._check(sequence, sequence.block_table[len(row.block_table) if row else 0 :])
        self._batch += 1
        output = SchedulerOutput.make_empty()
        for sequence in sequences:
            row = known.get(sequence.request_id)
            if row is not None:
                _add_cached(output.scheduled_cached_reqs, sequence, row)
            else:
                output.finished_req_ids.add(sequence.request_id)  # whatever it was before
                output.scheduled_new_reqs.append(self._new_request(sequence))
                num_tokens = sequence.num_computed_tokens + len(sequence.token_ids)
                row = self._rows[sequence.request_id] = _Row(sequence, list(sequence.block_table), num_tokens)
            row.batch, row.last_token = self._batch, None
            output.num_scheduled_tokens[sequence.request_id] = len(sequence.token_ids)
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.finished_req_ids.update(self._drop_old_rows())
        return output

    def settle(self, sampled: dict[str, int]) -> None:
        """A step that was told has ended well, with these tokens."""
        for request_id, token_id in sampled.items():
            row = self._rows[request_id]
            row.last_token = token_id
            row.num_tokens += 1
            row.num_sampled += 1

    def _new_request(self, sequence: Sequence) -> NewRequestData:
        """A request whose prompt is all that is known. Where no token is to be sampled the prompt goes on, by one that
        no step computes: the runner then drops what it samples."""
        history = sequence.history
        known = history.token_ids if history else [PLACEHOLDER] * sequence.num_computed_tokens
        token_ids = known[: sequence.num_computed_tokens] + sequence.token_ids
        if not sequence.needs_sample:
            token_ids.append(PLACEHOLDER)
        extra = {
            SAMPLING_KEY: sequence.sampling if sequence.needs_sample else NOT_SAMPLED,
            NUM_PROMPT_TOKENS_KEY: history.num_prompt_tokens if history else None,
            FILLS_RIGHT_KEY: sequence.fills_right,
            SCORED_KEY: _scored_chunk(sequence),
            EMBEDDED_KEY: sequence.num_computed_tokens if sequence.needs_embedding else None,
        }
        return NewRequestData(
            req_id=sequence.request_id,
            prompt_token_ids=token_ids,
            mm_features=[],
            # Ours ride along; greedy is the cheapest that vLLM's own may be.
            sampling_params=VllmSamplingParams(temperature=0.0, ignore_eos=True, max_tokens=None, extra_args=extra),
            pooling_params=None,
            block_ids=_block_ids(sequence.block_table),
            num_computed_tokens=sequence.num_computed_tokens,
            lora_request=self._adapters[sequence.sampling.adapter],
        )

    def _drop_old_rows(self) -> list[str]:
        """Those that are in no step that can be in flight."""
        old = [request_id for request_id, row in self._rows.items() if row.batch <= self._batch - self._depth]
        for request_id in old:
            del self._rows[request_id]
        return old

    def _check_step(self, sequences: list[Sequence]) -> None:
        num_tokens, max_num_tokens = sum(len(s.token_ids) for s in sequences), self._step_limits.max_num_batched_tokens
        num_seqs, max_num_seqs = len(sequences), self._step_limits.max_num_seqs
        if num_seqs > max_num_seqs or num_tokens > max_num_tokens:
            said = f"{num_tokens} tokens of {num_seqs} requests are more than a step holds"
            raise EngineError(f"{said}, {max_num_tokens} of {max_num_seqs}")

    def _check(self, sequence: Sequence, new_blocks: list[int]) -> None:
        """The runner would read and write beyond its arrays."""
        what, end = f"request {sequence.request_id}", sequence.num_computed_tokens + len(sequence.token_ids)
        if not sequence.token_ids:
            raise EngineError(f"{what} has no token to compute")
        if min(sequence.token_ids) < 0 or max(sequence.token_ids) >= self._vocab_size:
            raise EngineError(f"{what} has a token id outside the vocabulary of {self._vocab_size}")
        if end >= self._max_model_len:
            raise EngineError(f"{what}: no token can follow its {end} in a context of {self._max_model_len}")
        if end > len(sequence.block_table) * self._block_size:
            raise EngineError(f"{what}: its block table does not reach its {end} tokens")
        if min(new_blocks, default=0) < 0 or max(new_blocks, default=0) >= self._num_blocks:
            raise EngineError(f"{what} has a block outside the pool of {self._num_blocks}")
        if sequence.sampling.adapter not in self._adapters:
            raise EngineError(f"{what}: the adapter {sequence.sampling.adapter!r} is not loaded")
        if sequence.fills_right and not self._has_directions:
            raise EngineError(f"{what} fills its blocks from the right, which vLLM's attention does not read")


def _goes_on(row: _Row, sequence: Sequence) -> bool:
    """It decodes the token that the runner sampled for it in the step before."""
    known = row.block_table
    return (
        row.last_token is not None
        and sequence.token_ids == [row.last_token]
        and sequence.num_computed_tokens + 1 == row.num_tokens
        and (sequence.block_table == known or sequence.block_table[: len(known)] == known)
        and sequence.sampling == row.told.sampling
        and sequence.needs_sample
        and sequence.fills_right == row.told.fills_right
        and not sequence.scored_ids
    )


def _add_cached(cached: CachedRequestData, sequence: Sequence, row: _Row) -> None:
    new_blocks = sequence.block_table[len(row.block_table) :]
    row.block_table.extend(new_blocks)
    cached.req_ids.append(sequence.request_id)
    cached.new_token_ids.append(sequence.token_ids)  # for the stages that do not sample
    cached.new_block_ids.append(_block_ids(new_blocks) if new_blocks else None)
    cached.num_computed_tokens.append(sequence.num_computed_tokens)
    cached.num_output_tokens.append(row.num_sampled)


def _scored_chunk(sequence: Sequence) -> ScoredChunk | None:
    num_top = sequence.sampling.prompt_logprobs
    if not sequence.scored_ids or num_top is None:
        return None
    return ScoredChunk(sequence.num_computed_tokens, list(sequence.scored_ids), num_top)


def _block_ids(block_table: list[int]) -> tuple[list[int]]:
    """Of vLLM's one KV cache group."""
    return ([block_id + FIRST_BLOCK for block_id in block_table],)
