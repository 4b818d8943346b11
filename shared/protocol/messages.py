"""The messages between services, but for those whose subject has a file of its own here. All are frozen; the small
repeated ones are arrays on the wire."""

from __future__ import annotations

import enum

import msgspec

from shared.latency.features import BatchFeatures
from shared.latency.histogram import LatencyHistogram
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.scheduling.batch import Limits, ScheduledRequest
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.orders.online.order import ClientCounters
from shared.scheduling.packing.pace import Pace
from shared.scheduling.request import Kind as Kind
from shared.scheduling.request import Request
from shared.scheduling.strategy import Strategy


class GenerateRequest(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """One request for one sequence. ``output_token_ids`` holds what an earlier executor already generated."""

    request_id: str
    kind: Kind
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_s: float  # unix time
    gateway_id: str = ""  # where the tokens go; empty for requests of batches
    output_token_ids: list[int] = []
    client_id: str = ""  # whom fairness counts it for; empty for offline requests
    client_weight: float = 1.0  # under vtc, against 1 of other clients
    http_request_id: str = ""  # its x-request-id, for the log; clients choose it, so it need not be unique


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests within one step and free their KV blocks."""

    request_ids: list[str]


InboxMessage = GenerateRequest | AbortRequests


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How probable the model itself, before biases, penalties, temperature and all that cuts, found one output token
    and the most probable ones: natural logarithms, the greatest first."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class TokenOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one request gained in one step."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    error: str = ""  # why, with FinishReason.ERROR
    num_output_tokens: int | None = None  # of the request so far, these included: shows whether a message was lost
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids, where they were asked for


class StepTokens(msgspec.Struct, frozen=True):
    """All tokens of one step for one gateway."""

    executor_id: str
    epoch: str
    step: int
    outputs: list[TokenOutput]


class StepPlan(msgspec.Struct, frozen=True):
    """Q_recv: the plan for exactly one step of one executor's incarnation (``epoch``); with pipeline depth K it is
    made when the K-th step before that starts."""

    executor_id: str
    epoch: str
    step: int
    entries: list[ScheduledRequest]  # online first, then offline, each in scheduling order
    admitted: list[GenerateRequest]  # offline requests that enter with this plan
    preempted: list[str]  # whose KV is dropped before the step; offline ones are paused where the KV policy can
    latency_ms: float  # predicted for the whole batch
    wants_all: bool = False  # the scheduler has missed something: the next step message is to tell all that is held


class PlanSource(enum.StrEnum):
    """Where the batch of a step came from."""

    PLAN = "plan"  # the offline-queue's plan, reconciled
    LOCAL = "local"  # a plan was due and had not come: planned here
    IDLE = "idle"  # work arrived while nothing ran, so no plan was due: planned here


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that left the executor since the message before."""

    request_id: str
    finish_reason: FinishReason


class StepStarted(msgspec.Struct, frozen=True):
    """Q_send: the step that the executor starts now, and all that it holds. ``idle`` means no step starts:
    the executor waits for work, and a plan for ``step`` may come at any time. Where ``num_fresh`` counts the online
    requests that wait and have never run, ``states`` has only those of them that no message before had: they change
    in nothing, and may be thousands."""

    executor_id: str
    epoch: str
    step: int
    source: PlanSource
    idle: bool
    entries: list[ScheduledRequest]
    states: list[Request]
    ended: list[EndedRequest]
    num_free_blocks: int
    client_counters: ClientCounters | None = None  # of an online order that counts by client
    in_flight: list[list[ScheduledRequest]] = []  # earlier steps that have not ended, oldest first
    pace: Pace = Pace()  # for the step after the one that starts; deadlines are on its clock
    cache: CacheChanges = CacheChanges()  # of the prefix cache, since the message before
    num_fresh: int | None = None


class LatencySample(msgspec.Struct, frozen=True):
    """One timed step."""

    executor_id: str
    profile_key: str
    step: int
    shape: BatchFeatures
    latency_ms: float


class PrefillChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a prompt that one step computes, over the KV of what came before it."""

    num_tokens: int
    num_computed_tokens: int = 0


class MeasureShape(msgspec.Struct, frozen=True):
    """Ask an executor to time one batch on scratch KV blocks, while it is idle."""

    prefills: list[PrefillChunk]
    decode_context_lens: list[int]  # KV that is there before the decode's own token
    repeats: int = 3


class MeasuredShape(msgspec.Struct, frozen=True):
    """Reply to MeasureShape: one latency per repeat, or why it could not be done."""

    shape: BatchFeatures
    latencies_ms: list[float]
    error: str = ""


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
    plans_stale: int = 0  # plans that came for a step already started
    offline_dropped: int = 0  # entries dropped by PREEMPT_UNTIL_FIT
    entrant_tokens_planned: int = 0  # of requests that enter, as their plans had it
    entrant_tokens_computed: int = 0  # and as it was, with what the prefix cache had
    preemptions: int = 0  # requests that lost their KV
    pauses: int = 0  # offline requests that gave way and kept it
    checkpointed_slots: int = 0  # KV slots copied to the host
    restored_slots: int = 0  # and back
    aborted: int = 0
    finished_online: int = 0
    finished_offline: int = 0
    prompt_tokens: int = 0  # computed, cache hits not counted
    cached_tokens: int = 0
    online_tokens: int = 0  # generated
    offline_tokens: int = 0
    busy_s: float = 0.0  # time in engine steps


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


class FinishedOnline(msgspec.Struct, frozen=True, array_like=True):
    """An online request that left its executor, as a workload remembers it."""

    arrival_s: float  # unix time, at the gateway
    num_prompt_tokens: int
    num_output_tokens: int


class OnlineServed(msgspec.Struct):
    """What online users of one gateway got from one executor since its message before; sent at most once a second,
    and only where there is something to tell. Those who count hold one and add to it.

    The latencies are those of a replay's report, with arrival at the gateway as the beginning: TTFT ends at the first
    tokens, TBT is the gap between two arrivals of tokens of one request, TPOT is a request's time from first to last
    token over its tokens but one, normalized latency its whole time over its tokens.
    """

    executor_id: str
    gateway_id: str
    unix_s: float = 0.0
    oldest_open_s: float | None = None  # arrival of the oldest request that it still serves
    num_started: int = 0
    finished: list[FinishedOnline] = []
    ttft_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tbt_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tpot_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    normalized_latency_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)


class ServiceStatus(msgspec.Struct, frozen=True):
    """A process's answer to a ping."""

    name: str  # gateway, offline-queue, predictor, profiler, executor-0 ...
    pid: int
    health: str  # "ok", or what is wrong
    details: dict[str, float | int | str | bool | None]


class OfflineRequest(msgspec.Struct, frozen=True):
    """One line of a batch, stored in REQUESTS_STREAM until its result is durable."""

    request: GenerateRequest
    batch_id: str
    line: int  # from 1, as in the input file
    custom_id: str
    model: str


class OfflineLength(msgspec.Struct, frozen=True, array_like=True):
    """One offline request, as a workload knows it."""

    num_prompt_tokens: int
    max_tokens: int


class OfflineSample(msgspec.Struct, frozen=True):
    """The offline-queue's answer on OFFLINE_SAMPLE: some of its requests without a result, evenly spread by age."""

    lengths: list[OfflineLength]


class OfflineFailure(msgspec.Struct, frozen=True):
    """A run of an offline request that failed and may be tried again, stored in RESULTS_STREAM beside the results. How
    many of them a request has is how often it failed."""

    request_id: str
    reason: str


class ChoiceOutput(msgspec.Struct, frozen=True, array_like=True):
    """One of the choices that a request asks for, as it ended."""

    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None = None  # one for each token, where they were asked for


class OfflineResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one result of an offline request, stored in RESULTS_STREAM. What it says of its output is that of the first
    choice; one with an error has no other."""

    request_id: str
    output_token_ids: list[int]
    finish_reason: FinishReason
    num_cached_tokens: int = 0
    error: str = ""
    logprobs: list[TokenLogprobs] | None = None  # one for each token, where they were asked for
    other_choices: list[ChoiceOutput] = []

    @property
    def choices(self) -> list[ChoiceOutput]:
        """All of them, in their order."""
        return [ChoiceOutput(self.output_token_ids, self.finish_reason, self.logprobs), *self.other_choices]
