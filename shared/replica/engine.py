"""What an executor asks of an engine: run one batch on given KV blocks, and say which tokens came out.

The executor owns scheduling and the KV block tables; an engine owns the model and the KV tensors behind the blocks.
An engine is called from as many threads at a time as it has pipeline stages, usually one; no request and no block that
is written is in two of the calls. One that takes steps ahead may be given a step that was built before the one that it
follows had ended: a request that goes on then has a token TO_COME, which the engine sampled for it there.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from shared.latency.features import BatchFeatures
from shared.protocol.executors import EngineSpec
from shared.protocol.sampling import SamplingParams
from shared.protocol.tokens import TokenLogprobs
from shared.scheduling.kv.slot_transfers import SlotOperations

TO_COME = -1  # in the place of a token that the step before samples


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """All that is known of a request's tokens when a step runs; nobody changes it until the step has ended."""

    token_ids: list[int]  # prompt and output so far
    num_prompt_tokens: int

    @property
    def output(self) -> list[int]:
        """So far; a copy."""
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One request's share of a step: run ``token_ids`` at positions [num_computed, num_computed + len(token_ids))."""

    request_id: str
    token_ids: list[int]  # [num_scheduled_tokens]; the last may be TO_COME
    num_computed_tokens: int  # KV slots already written for this request
    block_table: list[int]  # block ids; covers num_computed_tokens + len(token_ids) slots
    sampling: SamplingParams
    needs_sample: bool  # the last of token_ids is the last known token: sample the one after it
    fills_right: bool = False  # the KV fills its blocks from the right end: see kernels.slots
    history: TokenHistory | None = None  # where a token is to be sampled that depends on those before it
    scored_ids: Seq[int] = ()  # of the prompt, what follows the first of token_ids: each to be scored
    needs_embedding: bool = False  # the last of token_ids is the prompt's last, and its state is asked for


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step. Sequences with one token and ``num_computed_tokens`` > 0 are decodes; order carries no meaning."""

    step: int
    sequences: list[Sequence]
    copies: Seq[SlotOperations] = ()  # in this order; their moves and restores precede the forward pass
    may_be_interrupted: bool = False  # nobody waits for its tokens
    follows: int | None = None  # a step that had not ended when this one was built, and on whose outcome it stands


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """By request id, of each sequence that needs_sample; records as of ``shared.protocol.prompt_scores``."""

    token_ids: dict[str, int]
    logprobs: dict[str, TokenLogprobs]  # of those whose sampling asks for them
    failed: dict[str, str] = field(default_factory=dict)  # of those that got no token, why
    prompt_scores: dict[str, bytes] = field(default_factory=dict)  # of those with scored_ids, a record for each
    embeddings: dict[str, bytes] = field(default_factory=dict)  # of those that need one: see ``Engine.execute``


class StepResult(msgspec.Struct, frozen=True):
    """What came out."""

    sampled: dict[str, int]  # request id -> token id, for each sequence that needs_sample and has not failed
    latency_ms: float  # wall time of the step inside the engine, without what it waited for copies
    logprobs: dict[str, TokenLogprobs] = {}  # of those whose sampling asks for them
    copy_wait_ms: float = 0.0  # before the forward pass, until the step's slots were in place
    failed: dict[str, str] = {}  # request id -> why; the KV of such a one is void
    is_interrupted: bool = False  # it has no outcome, or the step that it follows has none; its copies are done
    prompt_scores: dict[str, bytes] = {}  # of those with scored_ids, a record for each
    embeddings: dict[str, bytes] = {}  # of those that need one: see ``Engine.execute``

    @property
    def step_ms(self) -> float:
        """All that the step took."""
        return self.copy_wait_ms + self.latency_ms


@dataclass(frozen=True, slots=True)
class KVRegion:
    """The KV of one layer, or a part of it: that of block b is ``block_bytes`` from ``address + b * stride`` on."""

    address: int
    block_bytes: int
    stride: int  # bytes


@dataclass(frozen=True, slots=True)
class KVRegions:
    """Where the KV of each block lies, for others who read it: no step moves it."""

    layout: str  # in words; blocks mean the same to engines whose layouts are equal
    num_blocks: int
    regions: list[KVRegion]
    gpu: int | None = None  # its number; None: host memory

    @property
    def block_bytes(self) -> int:
        """Of one block, in all regions."""
        return sum(region.block_bytes for region in self.regions)


class KVShards(Protocol):
    """KV in several processes, each of which has a part of every block; how these are reached is not told here."""

    def close(self) -> None:
        """Nobody reaches them any more."""


class Engine(Protocol):
    """A loaded model with its KV blocks."""

    spec: EngineSpec

    def start_copies(self, copies: SlotOperations) -> None:
        """Begin to copy slots that no step in flight writes, beside the steps in flight, after all copies that were
        begun before; nothing where these were. The step whose batch has them waits for them, and fails where they do.
        Called from one thread."""

    def execute(self, batch: StepBatch) -> StepResult:
        """Run one step, once its copies are done; those that were not begun are now. Sampling is a function of (seed,
        position, tokens so far) alone, so that a request that was preempted or moved goes on with the same tokens.
        An embedding is the hidden state of a token behind the last norm, of length 1: float32 [hidden_size],
        little-endian.
        Tokens to come are put in their places in the batch; of a row that got none in the step before, any will do.
        Raises EngineError; the KV of every sequence in the batch is then void, and so is what the batch's copies
        wrote. Raises EngineLostError where no step can be run any more."""

    def interrupt(self, step: int) -> None:
        """Have this step stop within a few layers, where it runs and may be interrupted; any other is not touched. May
        be called while ``execute`` runs. Of an engine whose spec says that it is interruptible."""

    def kv_regions(self) -> KVRegions | KVShards | str:
        """Where its KV lies, until ``close``; or why no other process can read it, in words."""

    def close(self) -> None:
        """Free the model and the KV blocks."""


def batch_shape(batch: StepBatch) -> BatchFeatures:
    """The features of a batch as it ran."""
    features = BatchFeatures()
    for sequence in batch.sequences:
        features.add_scheduled(len(sequence.token_ids), sequence.num_computed_tokens)
    return features
