"""What an executor is, what it has done, and what it carries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import Amount, Count, Finite, Positive, ProfileKey, SubjectToken, TokenId
from shared.latency.architectures import Architecture
from shared.latency.features import BatchFeatures
from shared.latency.histogram import LatencyHistogram
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.limits import Limits
from shared.scheduling.placement.role import Role
from shared.scheduling.step_sizes import StepSizes
from shared.scheduling.strategy import Strategy


class EngineSpec(msgspec.Struct, frozen=True):
    """What is fixed about a loaded engine."""

    model: str  # the name that clients use
    engine: str  # "torch", "vllm", "sim"
    device: str  # as in a profile key: "cpu-amd-epyc-2t", "cuda-nvidia-h200-graphs256x1024"
    dtype: str
    max_model_len: Positive  # tokens, prompt and output together
    vocab_size: Positive
    block_size: Positive  # tokens of one KV block
    num_blocks: Positive
    eos_token_ids: tuple[TokenId, ...]
    pipeline_depth: Annotated[int, Meta(ge=1, le=64)] = 1  # stages; as many steps are in flight at a time
    num_host_slots: Count = 0  # KV slots of host memory that slots of the device can be checkpointed to
    swap_ms_per_slot: Amount = 0.0  # what a slot takes from the host to the device, where many are copied
    is_interruptible: bool = False  # a step stops within a few layers
    takes_steps_ahead: bool = False  # the next step is handed over while one runs, and takes that one's tokens itself
    architecture: Architecture | None = None  # of the model; None where it is no dense decoder
    tensor_parallel: Positive = 1  # devices that share each matrix
    adapters: tuple[str, ...] = ()  # LoRA adapters of the model that are loaded with it, by their names

    def why_without(self, adapter: str) -> str:
        """Why no request runs here with this adapter; empty where one may, or it is to have none."""
        return "" if not adapter or adapter in self.adapters else f"the adapter {adapter!r} is not loaded here"


class ExecutorInfo(msgspec.Struct, frozen=True):
    """An executor's registration. A new ``epoch`` is a new incarnation that holds nothing of the old one."""

    executor_id: SubjectToken
    epoch: str
    pid: int
    profile_key: ProfileKey  # what latency measurements are valid for
    spec: EngineSpec
    max_num_seqs: Positive  # these two may change while it runs
    max_num_batched_tokens: Positive
    strategy: Strategy = Strategy()  # schedulers follow it
    role: Role = Role.MIXED  # may change while it runs
    kv_link: str = ""  # by which requests move between executors with their KV; empty where they do not
    largest: StepSizes | None = None  # that its latency model may come to ask for; None: its sizes stay as they are

    @property
    def pool(self) -> Role:
        """What its role comes to: mixed where its requests cannot move, whatever it is told to be."""
        return self.role if self.kv_link else Role.MIXED

    @property
    def sizes(self) -> StepSizes:
        """Of its steps, by now."""
        return StepSizes(self.max_num_batched_tokens, self.max_num_seqs)

    @property
    def largest_sizes(self) -> StepSizes:
        """Of any step that it may ever run."""
        return self.largest or self.sizes

    @property
    def num_kv_tokens(self) -> int:
        """That its KV cache has room for."""
        return self.spec.num_blocks * self.spec.block_size

    def resized(self, sizes: StepSizes) -> ExecutorInfo:
        """With steps of these sizes from now on."""
        changes = {"max_num_batched_tokens": sizes.max_num_batched_tokens, "max_num_seqs": sizes.max_num_seqs}
        return msgspec.structs.replace(self, **changes)

    def limits(self) -> Limits:
        """What a schedule for this executor must keep to."""
        spec = self.spec
        return Limits(
            spec.block_size, spec.num_blocks, self.max_num_batched_tokens, self.max_num_seqs, spec.swap_ms_per_slot
        )


class ExecutorCounters(msgspec.Struct):
    """Totals since the executor started. Those who count hold one and add to it."""

    steps: Count = 0
    steps_planned: Count = 0  # ran the offline-queue's plan
    steps_local: Count = 0  # a plan was due and had not come
    steps_idle: Count = 0  # started from idle: no plan was due
    steps_offline: Count = 0  # had offline work in them
    steps_interrupted: Count = 0  # had only offline work, and gave way to an online request
    plans_stale: Count = 0  # plans that came for a step already started
    offline_dropped: Count = 0  # entries dropped by PREEMPT_UNTIL_FIT
    entrant_tokens_planned: Count = 0  # of requests that enter, as their plans had it
    entrant_tokens_computed: Count = 0  # and as it was, with what the prefix cache had
    preemptions: Count = 0  # requests that lost their KV
    pauses: Count = 0  # offline requests that gave way and kept it
    checkpointed_slots: Count = 0  # KV slots copied to the host
    restored_slots: Count = 0  # and back
    copy_wait_s: Finite = 0.0  # that steps waited for them, where they did not come beside the step before
    handed_over: Count = 0  # requests that went to another executor with their KV
    handover_s: Finite = 0.0  # that these were held for it
    taken_over: Count = 0  # and that came from one
    aborted: Count = 0
    finished_online: Count = 0
    finished_offline: Count = 0
    prompt_tokens: Count = 0  # computed, cache hits not counted
    cached_tokens: Count = 0  # of prompts, found in the prefix cache
    online_tokens: Count = 0  # generated
    offline_tokens: Count = 0
    busy_s: Finite = 0.0  # time in engine steps
    online_s: Finite = 0.0  # of those that are held to a tolerance, times the online requests in each
    online_alone_s: Finite = 0.0  # and what these would have taken without offline work, as far as is known
    messages_dropped: Count = 0  # of the bus, that came faster than they were handled
    messages_failed: Count = 0  # of the bus, that could not be handled


class Heartbeat(msgspec.Struct, frozen=True):
    """An executor is alive; what it carries right now."""

    info: ExecutorInfo
    counters: ExecutorCounters
    draining: bool
    online_waiting: Count
    online_running: Count
    offline_waiting: Count
    offline_running: Count
    num_free_blocks: Count
    online_work: BatchFeatures = msgspec.field(default_factory=BatchFeatures)  # as prefill, what is not computed
    reconnects: Count = 0  # of its bus connection: what was sent to it meanwhile is lost
    blocks: BlockOwners = BlockOwners()  # all 0 where it is not told
    step_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)  # steps since the heartbeat before
    num_wanted_blocks: Count = 0  # of those that nobody holds: what offline requests will read, where it is counted
    num_reserved_blocks: Count = 0  # that offline requests leave free when they enter
    offline_waits: str = ""  # why no offline request runs beside online ones, in words; empty where some may
    handover_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)  # of requests that went, as they do
    slow_step: str = ""  # that a step takes far longer than predicted, in words; empty where none does

    @property
    def num_held(self) -> int:
        """Requests that have not ended, of both kinds."""
        return self.online_waiting + self.online_running + self.offline_waiting + self.offline_running

    @property
    def is_drained(self) -> bool:
        """It takes nothing and holds nothing."""
        return self.draining and not self.num_held


class SetDraining(msgspec.Struct, frozen=True):
    """Take no requests from now on, until told otherwise or started anew; what is there goes on to its end."""

    draining: bool
