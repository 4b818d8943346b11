"""What the SLO-aware profiler found (HyGen section 4.2), with its evidence."""

import enum
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

DIGEST_BYTES = 6

ExecutorFacts = dict[str, str | int | float]


class Knob(enum.StrEnum):
    """What a search turns: HyGen's latency budget of a step, or the offline rate of its baseline HyGen*."""

    BUDGET_MS = "budget_ms"
    OFFLINE_QPS = "offline_qps"


class SloVerdict(msgspec.Struct, frozen=True):
    """One SLO in one test run. Milliseconds; None where there was nothing to measure or to compare with, and for a
    value that failed requests make infinite."""

    expr: str  # as it was given: "tbt_mean<=1.05x"
    bound_ms: float | None
    value_ms: float | None
    met: bool


class Trial(msgspec.Struct, frozen=True):
    """One test run of the workload. ``value`` is the knob's; 0 is the run without offline work."""

    value: float
    verdicts: list[SloVerdict]
    met: bool  # all of them, and no more online errors than without offline work
    online_completed: int
    online_errors: int
    offline_requests_per_s: float
    offline_tokens_per_s: float  # prompt and output
    offline_output_tokens_per_s: float
    backlog_ran_out: bool = False  # before the run's end, so that the load was less than it would be


class WorkloadFacts(msgspec.Struct, frozen=True):
    """The online requests that the test runs replayed."""

    source: str  # "recorded", or the trace's file name
    requests: int
    duration_s: float
    input_tokens_mean: float
    output_tokens_mean: float
    offline: str = ""  # where the offline work came from; empty where there was none
    offline_input_tokens_mean: float = 0.0
    offline_output_tokens_mean: float = 0.0
    burstiness: float = 0.0  # of arrivals: deviation of the times between them over their mean; 0 is not known


class SloProfileRecord(msgspec.Struct, frozen=True):
    """The largest value of the knob that keeps every SLO, and the runs that show it, in the order in which they ran.

    ``value`` is None where no run with offline work kept them; ``reachable`` tells whether the run without any did.
    ``best`` is, for each SLO, its value in the run without offline work: the least that can be promised.
    """

    profile_key: str
    slos: list[str]
    knob: Knob
    value: float | None
    reachable: bool
    best: list[SloVerdict]
    trials: list[Trial]
    workload: WorkloadFacts
    runs_on: str  # "simulator" or "live"
    profiled_at_s: float
    model_revision: int = 0  # of the latency model that the runs were made with; 0 where it is no published one
    why: str = ""  # it was done: "first", "workload drift", "model drift", "asked"
    executor: ExecutorFacts = {}  # what scheduled it, and within which limits; empty: not known


def slo_profile_key(profile_key: str, slos: Iterable[str], knob: Knob) -> str:
    """The key in SLO_PROFILES_BUCKET: the same for the same SLOs in any order and spacing."""
    expressions = sorted(map(plain_spelling, slos))
    digest = blake2b("\n".join([knob, *expressions]).encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{profile_key}.{digest}"


def plain_spelling(slo: str) -> str:
    """The same for every spacing and case of an SLO."""
    return "".join(slo.lower().split())


class ProfileRequest(msgspec.Struct, frozen=True):
    """Ask the profiler, on subjects.PROFILE, to search anew. Empty: all executor kinds, and the SLOs that are kept."""

    profile_key: str = ""
    slos: list[str] = []


class ProfileReply(msgspec.Struct, frozen=True):
    """Reply to ProfileRequest: what was found, a record for each profile key; or why nothing was."""

    records: list[SloProfileRecord]
    error: str = ""
