"""What vLLM's model runner knows of the requests in its batch, and what it has to be told for the next one.

The runner keeps a row for each request of its last batches, as many as steps can be in flight: tokens, block table, and
the token that it sampled itself. A decode whose tokens and blocks go on from there costs one line. Anything else (a
first chunk, a later one, a request that was held, preempted, or lost its sampled token to a stop string) is told as a
new request, with placeholders for the tokens whose KV is there, unless its sampling looks at them: nothing else does.
So the runner is never trusted with more than its last batches, and what it holds is bounded by them. A request is in
one step in flight at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.sampling_params import SamplingParams as VllmSamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from shared.errors import EngineError
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence

PLACEHOLDER = 0  # a token id that nothing reads
FIRST_BLOCK = 1  # vLLM keeps its block 0 as the null block: our blocks begin after it
NOT_SAMPLED = SamplingParams(max_tokens=1, temperature=0.0)  # of a row whose token is dropped: the cheapest
SAMPLING_KEY = "slackwater"  # where a request's sampling lies in vLLM's extra_args
NUM_PROMPT_TOKENS_KEY = "slackwater_num_prompt_tokens"  # None where its tokens may be placeholders
FILLS_RIGHT_KEY = "slackwater_fills_right"  # and which way it fills its blocks, for an attention that has directions


@dataclass(slots=True)
class _Row:
    """One request in the runner."""

    batch: int  # the last that it was in
    block_table: list[int]
    sampling: SamplingParams
    fills_right: bool
    num_tokens: int  # that the runner knows, the last one its own
    num_sampled: int = 0  # of those
    last_token: int | None = None  # None: the runner has none, or it is not known what it has


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """The sizes of the runner's arrays, and what its attention can do."""

    num_blocks: int  # ours, without the null block
    block_size: int
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    has_directions: bool  # reads blocks that are filled from the right


class RunnerMirror:
    """Turns sequences into vLLM's SchedulerOutput: ``tell``, then the step, then ``settle`` where it went well.
    ``depth``: steps that can be in flight, each told before the ones before it are settled."""

    def __init__(self, limits: RunnerLimits, depth: int) -> None:
        self._limits = limits
        self._depth = depth
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
                output.scheduled_new_reqs.append(_new_request(sequence))
                row = self._rows[sequence.request_id] = _new_row(sequence)
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

    def _drop_old_rows(self) -> list[str]:
        """Those that are in no step that can be in flight."""
        old = [request_id for request_id, row in self._rows.items() if row.batch <= self._batch - self._depth]
        for request_id in old:
            del self._rows[request_id]
        return old

    def _check_step(self, sequences: list[Sequence]) -> None:
        limits, num_sequences = self._limits, len(sequences)
        num_tokens = sum(len(sequence.token_ids) for sequence in sequences)
        if num_sequences > limits.max_num_seqs or num_tokens > limits.max_num_batched_tokens:
            raise EngineError(
                f"{num_tokens} tokens of {num_sequences} requests are more than a step holds, "
                f"{limits.max_num_batched_tokens} of {limits.max_num_seqs}"
            )

    def _check(self, sequence: Sequence, new_blocks: list[int]) -> None:
        """The runner would read and write beyond its arrays."""
        limits, what = self._limits, f"request {sequence.request_id}"
        end = sequence.num_computed_tokens + len(sequence.token_ids)
        if not sequence.token_ids:
            raise EngineError(f"{what} has no token to compute")
        if min(sequence.token_ids) < 0 or max(sequence.token_ids) >= limits.vocab_size:
            raise EngineError(f"{what} has a token id outside the vocabulary of {limits.vocab_size}")
        if end >= limits.max_model_len:
            raise EngineError(f"{what}: no token can follow its {end} in a context of {limits.max_model_len}")
        if end > len(sequence.block_table) * limits.block_size:
            raise EngineError(f"{what}: its block table does not reach its {end} tokens")
        if min(new_blocks, default=0) < 0 or max(new_blocks, default=0) >= limits.num_blocks:
            raise EngineError(f"{what} has a block outside the pool of {limits.num_blocks}")
        if sequence.fills_right and not limits.has_directions:
            raise EngineError(f"{what} fills its blocks from the right, which vLLM's attention does not read")


def _goes_on(row: _Row, sequence: Sequence) -> bool:
    """It decodes the token that the runner sampled for it in the step before."""
    known = row.block_table
    return (
        row.last_token is not None
        and sequence.token_ids == [row.last_token]
        and sequence.num_computed_tokens + 1 == row.num_tokens
        and (sequence.block_table == known or sequence.block_table[: len(known)] == known)
        and sequence.sampling == row.sampling
        and sequence.needs_sample
        and sequence.fills_right == row.fills_right
    )


def _add_cached(cached: CachedRequestData, sequence: Sequence, row: _Row) -> None:
    new_blocks = sequence.block_table[len(row.block_table) :]
    row.block_table.extend(new_blocks)
    cached.req_ids.append(sequence.request_id)
    cached.new_token_ids.append(sequence.token_ids)  # for the stages that do not sample
    cached.new_block_ids.append(_block_ids(new_blocks) if new_blocks else None)
    cached.num_computed_tokens.append(sequence.num_computed_tokens)
    cached.num_output_tokens.append(row.num_sampled)


def _new_row(sequence: Sequence) -> _Row:
    num_tokens = sequence.num_computed_tokens + len(sequence.token_ids)
    return _Row(0, list(sequence.block_table), sequence.sampling, sequence.fills_right, num_tokens)


def _new_request(sequence: Sequence) -> NewRequestData:
    """A request whose prompt is all that is known. Where no token is to be sampled the prompt goes on, by one that no
    step computes: the runner then drops what it samples."""
    known = sequence.history.token_ids if sequence.history else [PLACEHOLDER] * sequence.num_computed_tokens
    token_ids = known[: sequence.num_computed_tokens] + sequence.token_ids
    if not sequence.needs_sample:
        token_ids.append(PLACEHOLDER)
    return NewRequestData(
        req_id=sequence.request_id,
        prompt_token_ids=token_ids,
        mm_features=[],
        sampling_params=_sampling_params(sequence),
        pooling_params=None,
        block_ids=_block_ids(sequence.block_table),
        num_computed_tokens=sequence.num_computed_tokens,
        lora_request=None,
    )


def _block_ids(block_table: list[int]) -> tuple[list[int]]:
    """Of vLLM's one KV cache group."""
    return ([block_id + FIRST_BLOCK for block_id in block_table],)


def _sampling_params(sequence: Sequence) -> VllmSamplingParams:
    """Ours ride along; greedy is the cheapest that vLLM's own may be."""
    sampling = sequence.sampling if sequence.needs_sample else NOT_SAMPLED
    extra = {
        SAMPLING_KEY: sampling,
        NUM_PROMPT_TOKENS_KEY: sequence.history.num_prompt_tokens if sequence.history else None,
        FILLS_RIGHT_KEY: sequence.fills_right,
    }
    return VllmSamplingParams(temperature=0.0, ignore_eos=True, max_tokens=None, extra_args=extra)
