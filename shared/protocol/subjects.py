"""Every subject, stream and bucket on the bus, in one place.

Core NATS subjects carry the live traffic, streams hold the offline pool, KV buckets hold records that outlive a
process, and one object bucket holds the files. Offline request ids have the form ``<batch_id>.<line>`` so that
an id is also the tail of its subjects, and a whole batch is addressed by ``<batch_id>.*``.
"""

PREFIX = "slackwater"

# Streams (JetStream). Both keep one message per subject and refuse a second: ingestion and results are idempotent.
REQUESTS_STREAM = "SLACKWATER_REQUESTS"
RESULTS_STREAM = "SLACKWATER_RESULTS"

# Key-value buckets.
EXECUTORS_BUCKET = "slackwater_executors"  # executor id -> ExecutorInfo
BATCHES_BUCKET = "slackwater_batches"  # batch id -> BatchRecord
FILES_BUCKET = "slackwater_files"  # file id -> FileObject
LATENCY_MODELS_BUCKET = "slackwater_latency_models"  # profile key -> LatencyModelRecord
API_KEYS_BUCKET = "slackwater_api_keys"  # name -> ApiKeyRecord
REVOKED_API_KEYS_BUCKET = "slackwater_revoked_api_keys"  # hash -> ApiKeyRecord, as it was
BUDGETS_BUCKET = "slackwater_budgets"  # profile key -> BudgetRecord
SLO_PROFILES_BUCKET = "slackwater_slo_profiles"  # slo_profile_key -> SloProfileRecord

# Object bucket: file id -> the bytes of the file.
OBJECTS_BUCKET = "slackwater_objects"

PING = f"{PREFIX}.ping"  # every process answers with a ServiceStatus
FLEX = f"{PREFIX}.flex"  # request and reply: gateways send a FlexMessage, the offline-queue answers with a FlexAnswer
FLEX_DROP = f"{PREFIX}.flex.drop"  # AbortRequests from gateways to the offline-queue: it need not run these
OFFLINE_SAMPLE = f"{PREFIX}.offline.sample"  # request and reply: the offline-queue answers with an OfflineSample
SLO_STATUS = f"{PREFIX}.slo-status"  # request and reply: the profiler answers with an SloReport
PROFILE = f"{PREFIX}.profile"  # request and reply: ProfileRequest, ProfileReply
PREDICT = f"{PREFIX}.predict"  # request and reply: PredictBatch, Prediction
HEARTBEATS = f"{PREFIX}.executor.*.heartbeat"
LATENCY_SAMPLES = f"{PREFIX}.executor.*.sample"
STEPS = f"{PREFIX}.executor.*.step"
ONLINE_SERVED = f"{PREFIX}.executor.*.online"
ALL_REQUESTS = f"{PREFIX}.requests.>"
ALL_RESULTS = f"{PREFIX}.results.*.*"
ALL_FAILURES = f"{PREFIX}.results.*.*.*"
RESULTS_AND_FAILURES = f"{PREFIX}.results.>"


def inbox(executor_id: str) -> str:
    """Requests and aborts for one executor; its scheduler in the offline-queue listens to the same subject."""
    return f"{PREFIX}.executor.{executor_id}.inbox"


def step(executor_id: str) -> str:
    """Q_send of HyGen Alg. 2: what the executor starts, and the truth about its state."""
    return f"{PREFIX}.executor.{executor_id}.step"


def plan(executor_id: str) -> str:
    """Q_recv of HyGen Alg. 2: the plan of the next step."""
    return f"{PREFIX}.executor.{executor_id}.plan"


def heartbeat(executor_id: str) -> str:
    """Liveness, once a second."""
    return f"{PREFIX}.executor.{executor_id}.heartbeat"


def sample(executor_id: str) -> str:
    """One latency sample per step."""
    return f"{PREFIX}.executor.{executor_id}.sample"


def measure(executor_id: str) -> str:
    """Request and reply: run one batch shape on scratch blocks and time it."""
    return f"{PREFIX}.executor.{executor_id}.measure"


def cache(executor_id: str) -> str:
    """Request and reply: an executor tells all that its prefix cache has, as CacheChanges."""
    return f"{PREFIX}.executor.{executor_id}.cache"


def drain(executor_id: str) -> str:
    """Request and reply: SetDraining; the executor answers with its heartbeat."""
    return f"{PREFIX}.executor.{executor_id}.drain"


def online(executor_id: str) -> str:
    """What online users got from it, once a second from each gateway."""
    return f"{PREFIX}.executor.{executor_id}.online"


def executor_alive(executor_id: str) -> str:
    """Request and reply: an executor says that it is there."""
    return f"{PREFIX}.executor.{executor_id}.alive"


def tokens(gateway_id: str) -> str:
    """The tokens of one step for one gateway."""
    return f"{PREFIX}.gateway.{gateway_id}.tokens"


def alive(gateway_id: str) -> str:
    """Request and reply: a gateway says that it is there."""
    return f"{PREFIX}.gateway.{gateway_id}.alive"


def offline_request(request_id: str) -> str:
    """Where one offline request is stored until its result is durable."""
    return f"{PREFIX}.requests.{request_id}"


def result(request_id: str) -> str:
    """Where the one result of an offline request is stored."""
    return f"{PREFIX}.results.{request_id}"


def failure(request_id: str, failure_id: str) -> str:
    """Where one failed run of an offline request is stored; ``failure_id`` is the run's own."""
    return f"{PREFIX}.results.{request_id}.{failure_id}"


def batch_failures(batch_id: str) -> str:
    """All stored failures of one batch."""
    return f"{PREFIX}.results.{batch_id}.*.*"


def batch_requests(batch_id: str) -> str:
    """All stored requests of one batch."""
    return f"{PREFIX}.requests.{batch_id}.*"


def batch_results(batch_id: str) -> str:
    """All stored results of one batch."""
    return f"{PREFIX}.results.{batch_id}.*"
