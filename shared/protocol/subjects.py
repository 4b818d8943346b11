"""Every subject, stream and bucket on the bus, in one place.

Core NATS subjects carry the live traffic, streams hold the offline pool, KV buckets hold records that outlive a
process, and an object bucket holds the files. Offline work is told apart by its model: what one offline-queue has to do
is below the token of its model's name. Offline request ids have the form ``<batch_id>.<line>``: they are the tails of
their subjects, and a whole batch is addressed by ``<batch_id>.*``."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

PREFIX = "slackwater"

# Streams (JetStream). Both keep one message per subject and refuse a second: ingestion and results are idempotent.
REQUESTS_STREAM = "SLACKWATER_REQUESTS"
RESULTS_STREAM = "SLACKWATER_RESULTS"

# Key-value buckets.
EXECUTORS_BUCKET = "slackwater_executors"  # executor id -> ExecutorInfo
LEASES_BUCKET = "slackwater_leases"  # what one process may be at a time -> LeaseHolder
BATCHES_BUCKET = "slackwater_batches"  # batch id -> BatchRecord
BATCH_KEYS_BUCKET = "slackwater_batch_keys"  # hash of an owner and its Idempotency-Key -> BatchKey
FILES_BUCKET = "slackwater_files"  # file id -> FileObject
LATENCY_MODELS_BUCKET = "slackwater_latency_models"  # profile key -> LatencyModelRecord
API_KEYS_BUCKET = "slackwater_api_keys"  # name -> ApiKeyRecord
REVOKED_API_KEYS_BUCKET = "slackwater_revoked_api_keys"  # hash -> ApiKeyRecord, as it was
KEY_USAGE_BUCKET = "slackwater_key_usage"  # UsagePlace.key -> KeyUsage
BUDGETS_BUCKET = "slackwater_budgets"  # profile key -> BudgetRecord
SLO_PROFILES_BUCKET = "slackwater_slo_profiles"  # slo_profile_key -> SloProfileRecord
RESPONSES_BUCKET = "slackwater_responses"  # response id -> StoredResponse; the server deletes what is too old
LEARNT_BUCKET = "slackwater_learnt"  # LearntBy.key -> Learnt

# Object bucket: file id -> the bytes of the file.
OBJECTS_BUCKET = "slackwater_objects"

BUCKETS = (
    EXECUTORS_BUCKET,
    LEASES_BUCKET,
    BATCHES_BUCKET,
    BATCH_KEYS_BUCKET,
    FILES_BUCKET,
    LATENCY_MODELS_BUCKET,
    API_KEYS_BUCKET,
    REVOKED_API_KEYS_BUCKET,
    KEY_USAGE_BUCKET,
    BUDGETS_BUCKET,
    SLO_PROFILES_BUCKET,
    RESPONSES_BUCKET,
    LEARNT_BUCKET,
)
# All that is stored, by its name on the server.
STORED = (REQUESTS_STREAM, RESULTS_STREAM, f"OBJ_{OBJECTS_BUCKET}", *(f"KV_{bucket}" for bucket in BUCKETS))

PING = f"{PREFIX}.ping"  # every process answers with a ServiceStatus
SLO_STATUS = f"{PREFIX}.slo-status"  # request and reply: the profiler answers with an SloReport
PROFILE = f"{PREFIX}.profile"  # request and reply: ProfileRequest, ProfileReply
PREDICT = f"{PREFIX}.predict"  # request and reply: PredictBatch, Prediction
SAMPLES_WANTED = f"{PREFIX}.samples-wanted"  # by a predictor that has none: profilers send those of their sweeps again
HEARTBEATS = f"{PREFIX}.executor.*.heartbeat"
LATENCY_SAMPLES = f"{PREFIX}.executor.*.sample"
STEPS = f"{PREFIX}.executor.*.step"
TAKEN = f"{PREFIX}.executor.*.taken"
ONLINE_SERVED = f"{PREFIX}.executor.*.online"
ALL_REQUESTS = f"{PREFIX}.requests.>"
RESULTS_AND_FAILURES = f"{PREFIX}.results.>"

SubjectOf = Callable[[str], str]  # of one executor, gateway or holder, by its id

UNSAFE = re.compile(r"[^A-Za-z0-9_-]")  # in a token that is a part of a bucket's key, too


def _of_executor(what: str) -> SubjectOf:
    return f"{PREFIX}.executor.{{}}.{what}".format


inbox = _of_executor("inbox")  # requests and aborts; its scheduler in the offline-queue listens to the same subject
step = _of_executor("step")  # Q_send of HyGen Alg. 2: what the executor starts, and the truth about its state
plan = _of_executor("plan")  # Q_recv of HyGen Alg. 2: the plan of the next step
heartbeat = _of_executor("heartbeat")  # liveness, once a second
sample = _of_executor("sample")  # one latency sample per step
measure = _of_executor("measure")  # request and reply: run one batch shape on scratch blocks and time it
cache = _of_executor("cache")  # request and reply: all that its prefix cache has, as CacheChanges
drain = _of_executor("drain")  # request and reply: SetDraining; the executor answers with its heartbeat
offer = _of_executor("offer")  # request and reply between executors: OfferMessage, OfferAnswer
pull = _of_executor("pull")  # Pull, from a strict executor to a relaxed one
kv_address = _of_executor("kv-address")  # request and reply between executors: AskKVAddress, KVAddress
taken = _of_executor("taken")  # Taken, from the executor that has taken a request
role = _of_executor("role")  # request and reply: SetRole; the executor answers with its heartbeat
online = _of_executor("online")  # what online users got from it, once a second from each gateway
executor_alive = _of_executor("alive")  # request and reply: WhoAsks; an executor says that it is there

holder: SubjectOf = f"{PREFIX}.holder.{{}}".format  # request and reply: who holds a lease says that it is there

tokens: SubjectOf = f"{PREFIX}.gateway.{{}}.tokens".format  # those of one step for one gateway
alive: SubjectOf = f"{PREFIX}.gateway.{{}}.alive".format  # request and reply: HeldRequests, AbortRequests


@dataclass(frozen=True, slots=True)
class ModelSubjects:
    """Those of one model's offline work. ``model``: the token of its name."""

    model: str

    @property
    def flex(self) -> str:
        """Request and reply: gateways send a FlexMessage, the model's offline-queue answers with a FlexAnswer."""
        return f"{PREFIX}.flex.{self.model}"

    @property
    def flex_drop(self) -> str:
        """AbortRequests from gateways to the offline-queue: it need not run these."""
        return f"{PREFIX}.flex.{self.model}.drop"

    @property
    def sample(self) -> str:
        """Request and reply: the offline-queue answers with an OfflineSample."""
        return f"{PREFIX}.offline.{self.model}.sample"

    @property
    def all_results(self) -> str:
        return f"{PREFIX}.results.{self.model}.*.*"

    @property
    def all_failures(self) -> str:
        return f"{PREFIX}.results.{self.model}.*.*.*"

    def request(self, request_id: str) -> str:
        """Where an offline request is stored until its result is durable."""
        return f"{PREFIX}.requests.{self.model}.{request_id}"

    def result(self, request_id: str) -> str:
        """Where the one result of an offline request is stored."""
        return f"{PREFIX}.results.{self.model}.{request_id}"

    def failure(self, request_id: str, failure_id: str) -> str:
        """Where one failed run of an offline request is stored; ``failure_id`` is the run's own."""
        return f"{self.result(request_id)}.{failure_id}"

    def batch_requests(self, batch_id: str) -> str:
        """All that are stored of one batch."""
        return self.request(f"{batch_id}.*")

    def batch_results(self, batch_id: str) -> str:
        return self.result(f"{batch_id}.*")

    def batch_failures(self, batch_id: str) -> str:
        return self.result(f"{batch_id}.*.*")


ANY_MODEL = ModelSubjects("*")


def of_model(name: str) -> ModelSubjects:
    """By its name in the stack."""
    return ModelSubjects(model_token(name))


def model_token(name: str) -> str:
    """A model's name as one token of a subject, or of a bucket's key: another one for each other name."""
    return UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name)


def model_of_token(token: str) -> str:
    """The name that ``model_token`` made it of."""
    return unquote(token.replace("=", "%"))


def request_of(subject: str) -> str:
    """The offline request that a message of REQUESTS_STREAM or RESULTS_STREAM is about."""
    return ".".join(subject.split(".")[3:5])
