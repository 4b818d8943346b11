"""Slackwater's own series that are read, not counted, when metrics are asked for, and those of HTTP requests and of the
bus."""

import msgspec

from services.gateway.metrics.series import Series, Type, own
from shared.protocol.executors import ExecutorCounters

COUNTER, GAUGE = Type.COUNTER, Type.GAUGE
OF_EXECUTOR = ("executor_id",)

HTTP_REQUESTS = own("http.requests", COUNTER, "answered, by route and status", labels=("method", "route", "status"))
REFUSED = own("refused.requests", COUNTER, "valid, not served; by reason", labels=("reason",))
HTTP = (HTTP_REQUESTS, REFUSED)

PROCESS = {
    "live_requests": own("live.requests", GAUGE, "online requests that have not ended"),
    "waiting_requests": own("waiting.requests", GAUGE, "of them, those without a first token"),
    "flex_requests": own("flex.requests", GAUGE, "flex requests that have not ended"),
    "connections": own("http.connections", GAUGE, "open HTTP connections"),
    "answering": own("http.answering", GAUGE, "HTTP requests whose answer has not ended"),
    "viewers": own("dashboard.viewers", GAUGE, "dashboards that are open"),
    "stalled": own("http.stalled", COUNTER, "clients that were cut off since they did not read"),
    "refused_connections": own("http.refused_connections", COUNTER, "connections beyond a client's limit"),
    "reconnects": own("bus.reconnects", COUNTER, "times that the bus was away and came back"),
    "dropped": own("messages.dropped", COUNTER, "of the bus, that came faster than they were handled"),
    "failed": own("messages.failed", COUNTER, "of the bus, that could not be handled"),
}

BUS_ROUND_TRIP = own(
    "bus.round_trip",
    Type.HISTOGRAM,
    "what the bus took to answer, asked every two seconds while it is there",
    "s",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

MODEL_EXECUTORS = own(
    "model.executors", GAUGE, "executors that take requests of the model, which clients call so", labels=("model_name",)
)
EXECUTOR_UP = own(
    "executor.up",
    GAUGE,
    "1 where it is heard, 0 where it is silent and has not signed off; none an hour after it was heard last",
    labels=OF_EXECUTOR,
)
EXECUTOR_LOAD = own(
    "executor.load", GAUGE, "predicted until a short request that is sent there now has its answer", "s", OF_EXECUTOR
)
HEARTBEAT = {
    name: own(f"executor.{name}", GAUGE, f"{meaning}, at the last heartbeat", labels=OF_EXECUTOR)
    for name, meaning in {
        "online_waiting": "online requests that wait there for their first step",
        "online_running": "online requests that run",
        "offline_waiting": "offline requests that have lost their place or wait for it",
        "offline_running": "offline requests that run",
        "num_free_blocks": "KV blocks that nobody holds",
        "num_wanted_blocks": "of these, those that offline requests will read, where they are counted",
        "num_reserved_blocks": "KV blocks that offline requests leave free when they enter",
    }.items()
}
NUM_BLOCKS = own("executor.num_blocks", GAUGE, "KV blocks in all", labels=OF_EXECUTOR)
BLOCKS = own("executor.blocks", GAUGE, "KV blocks by owner, at the last heartbeat", labels=("executor_id", "owner"))
BLOCK_OWNERS = ("online", "shared", "offline", "paused", "cached", "empty")
DRAINING = own("executor.draining", GAUGE, "1 where it takes no requests, else 0", labels=OF_EXECUTOR)
EXECUTOR_BUDGET = own(
    "executor.budget", GAUGE, "of a step with what it holds now; none where it is bounded otherwise", "s", OF_EXECUTOR
)
SLOWDOWN = own(
    "executor.online_slowdown",
    GAUGE,
    "what online tokens took in the last minute over what they take without offline work",
    labels=OF_EXECUTOR,
)
EXECUTORS = (
    *(MODEL_EXECUTORS, EXECUTOR_UP, EXECUTOR_LOAD, *HEARTBEAT.values()),
    *(NUM_BLOCKS, BLOCKS, DRAINING, EXECUTOR_BUDGET, SLOWDOWN),
)

COUNTED = {
    "steps": "steps of the engine",
    "steps_planned": "of these, those that ran the offline-queue's plan",
    "steps_local": "steps for which a plan was due and had not come",
    "steps_idle": "steps that began from idle: no plan was due",
    "steps_offline": "steps with offline work in them",
    "steps_interrupted": "steps of offline work alone that gave way to an online request",
    "plans_stale": "plans that came for a step that had begun",
    "offline_dropped": "entries of plans that were dropped until the step fitted",
    "entrant_tokens_planned": "prompt tokens to compute of requests that enter, as plans had it",
    "entrant_tokens_computed": "and as it was, with what the prefix cache had",
    "preemptions": "requests that lost their KV",
    "pauses": "offline requests that gave way and kept their KV",
    "checkpointed_slots": "KV slots that were copied to the host",
    "restored_slots": "KV slots that were copied back",
    "copy_wait_s": "time for which steps waited for such copies",
    "handed_over": "requests that went to another executor with their KV",
    "handover_s": "time for which these were held for it",
    "taken_over": "requests that came from another executor with their KV",
    "aborted": "requests that were stopped",
    "finished_online": "online requests that ended",
    "finished_offline": "offline requests that ended, lines of batches and flex requests",
    "prompt_tokens": "tokens of prompts that were computed",
    "cached_tokens": "tokens of prompts that the prefix cache had",
    "online_tokens": "generated tokens of online requests",
    "offline_tokens": "generated tokens of offline requests",
    "busy_s": "time in steps of the engine",
    "online_s": "time of steps that are held to a tolerance, times the online requests in each",
    "online_alone_s": "and what these would have taken without offline work",
    "messages_dropped": "messages of the bus that came faster than they were handled",
    "messages_failed": "messages of the bus that could not be handled",
}


def _counted(name: str) -> Series:
    unit = "s" if name.endswith("_s") else ""
    meaning = COUNTED.get(name, name.replace("_", " "))
    return own(f"executor.{name.removesuffix('_s')}", COUNTER, meaning, unit, OF_EXECUTOR)


EXECUTOR_COUNTERS = {field.name: _counted(field.name) for field in msgspec.structs.fields(ExecutorCounters)}

OF_KIND = ("profile_key",)
OF_SLO = ("profile_key", "slo")
BUDGET = own(
    "budget", GAUGE, "of one step, of a kind of executor; the source says where it is from", "s", (*OF_KIND, "source")
)
TOLERANCE = own(
    "budget.tolerance", GAUGE, "in its place, the share by which online tokens may come later", labels=OF_KIND
)
SLO_KEPT = own("slo.kept", GAUGE, "1 where the last minute kept it, else 0; none without requests", labels=OF_SLO)
SLO_BOUND = own("slo.bound", GAUGE, "the SLO's bound", "s", OF_SLO)
SLO_MEASURED = own("slo.measured", GAUGE, "what the last minute had of it", "s", OF_SLO)
BUDGETS = (BUDGET, TOLERANCE, SLO_KEPT, SLO_BOUND, SLO_MEASURED)

BATCHES = own("batches", GAUGE, "batches that have not ended, by status", labels=("status",))
BATCHES_ENDED = own("batches.ended", COUNTER, "that ended while this gateway was there, by status", labels=("status",))
BATCHES_BROKEN = own("batches.broken", COUNTER, "of these, those that failed, and not for what is in their files")
LINES_LEFT = own("batch.lines_left", GAUGE, "lines of these batches without a result")
LINES = own("batch.lines", COUNTER, "that got a result while this gateway was there", labels=("result",))
OF_BATCHES = (BATCHES, BATCHES_ENDED, BATCHES_BROKEN, LINES_LEFT, LINES)

SERVICE_UP = own(
    "service.up",
    GAUGE,
    "1 where it answers and is well, else 0; of several that have one name, where all are; an executor that is gone "
    "has none",
    labels=("service",),
)
RESTARTS = own(
    "service.restarts", COUNTER, "of a process of the stack, as far as this gateway has seen them", labels=("service",)
)
SERVICES = (SERVICE_UP, RESTARTS)
