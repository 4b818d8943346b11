"""What an executor is, what it has done, and what it carries."""

import msgspec

from shared.latency.features import BatchFeatures
from shared.latency.histogram import LatencyHistogram
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.limits import Limits
from shared.scheduling.strategy import Strategy


class EngineSpec(msgspec.Struct, frozen=True):
    """What is fixed about a loaded engine."""

    model: str  # the name that clients use
    engine: str  # "torch", "vllm", "sim"
    device: str  # as in a profile key: "cpu-amd-epyc-2t", "cuda-nvidia-h200"
    dtype: str
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int
    block_size: int  # tokens of one KV block
    num_blocks: int
    eos_token_ids: tuple[int, ...]
    pipeline_depth: int = 1  # stages; as many steps are in flight at a time
    num_host_slots: int = 0  # KV slots of host memory that slots of the device can be checkpointed to
    swap_ms_per_slot: float = 0.0  # what a slot takes from the host to the device, where many are copied
    is_interruptible: bool = False  # a step stops within a few layers
    takes_steps_ahead: bool = False  # the next step is handed over while one runs, and takes that one's tokens itself


class ExecutorInfo(msgspec.Struct, frozen=True):
    """An executor's registration. A new ``epoch`` is a new incarnation that holds nothing of the old one."""

    executor_id: str
    epoch: str
    pid: int
    profile_key: str  # what latency measurements are valid for
    spec: EngineSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    strategy: Strategy = Strategy()  # schedulers follow it

    def limits(self) -> Limits:
        """What a schedule for this executor must keep to."""
        spec = self.spec
        return Limits(
            spec.block_size, spec.num_blocks, self.max_num_batched_tokens, self.max_num_seqs, spec.swap_ms_per_slot
        )


class ExecutorCounters(msgspec.Struct):
    """Totals since the executor started. Those who count hold one and add to it."""

    steps: int = 0
    steps_planned: int = 0  # ran the offline-queue's plan
    steps_local: int = 0  # a plan was due and had not come
    steps_idle: int = 0  # started from idle: no plan was due
    steps_offline: int = 0  # had offline work in them
    steps_interrupted: int = 0  # had only offline work, and gave way to an online request
    plans_stale: int = 0  # plans that came for a step already started
    offline_dropped: int = 0  # entries dropped by PREEMPT_UNTIL_FIT
    entrant_tokens_planned: int = 0  # of requests that enter, as their plans had it
    entrant_tokens_computed: int = 0  # and as it was, with what the prefix cache had
    preemptions: int = 0  # requests that lost their KV
    pauses: int = 0  # offline requests that gave way and kept it
    checkpointed_slots: int = 0  # KV slots copied to the host
    restored_slots: int = 0  # and back
    copy_wait_s: float = 0.0  # that steps waited for them, where they did not come beside the step before
    aborted: int = 0
    finished_online: int = 0
    finished_offline: int = 0
    prompt_tokens: int = 0  # computed, cache hits not counted
    cached_tokens: int = 0
    online_tokens: int = 0  # generated
    offline_tokens: int = 0
    busy_s: float = 0.0  # time in engine steps
    online_s: float = 0.0  # of those that are held to a tolerance, times the online requests in each
    online_alone_s: float = 0.0  # and what these would have taken without offline work, as far as is known
    messages_dropped: int = 0  # of the bus, that came faster than they were handled
    messages_failed: int = 0  # of the bus, that could not be handled


class Heartbeat(msgspec.Struct, frozen=True):
    """An executor is alive; what it carries right now."""

    info: ExecutorInfo
    counters: ExecutorCounters
    draining: bool
    online_waiting: int
    online_running: int
    offline_waiting: int
    offline_running: int
    num_free_blocks: int
    online_work: BatchFeatures = msgspec.field(default_factory=BatchFeatures)  # as prefill, what is not computed
    reconnects: int = 0  # of its bus connection: what was sent to it meanwhile is lost
    blocks: BlockOwners = BlockOwners()  # all 0 where it is not told
    step_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)  # steps since the heartbeat before
    num_wanted_blocks: int = 0  # of those that nobody holds: what offline requests will read, where it is counted
    num_reserved_blocks: int = 0  # that offline requests leave free when they enter
    offline_waits: str = ""  # why no offline request runs beside online ones, in words; empty where some may
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
