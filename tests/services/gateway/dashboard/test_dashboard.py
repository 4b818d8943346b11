"""What the dashboard is told: its rows, its snapshots, who gets them; and the files that it consists of."""

import asyncio
import contextlib
import hashlib
import json
import signal
import tomllib
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from deploy.vendor_uplot import FILES, INTEGRITY, PACKAGE
from services.gateway.api.dashboard import FOLDER
from services.gateway.dashboard.history import COLUMNS, SPAN_S, History
from services.gateway.dashboard.hub import MAX_VIEWERS, DashboardHub
from services.gateway.dashboard.parts import Parts
from services.gateway.dashboard.questions import StackQuestions
from services.gateway.dashboard.snapshot import ExecutorState
from services.gateway.http.errors import Refusal
from services.gateway.http.tally import MAX_NAMES, HttpTally, KeyTally
from services.gateway.tenants import Tenant
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.histogram import LatencyHistogram
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters, Heartbeat
from shared.protocol.offline.batches import BatchRecord, LineError, LineErrors, RequestCounts
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport, SloState, SloStatus
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.protocol.profiling.slo_profile import (
    Knob,
    SloProfileRecord,
    SloVerdict,
    Trial,
    WorkloadFacts,
    slo_profile_key,
)
from shared.protocol.services import ServiceStatus
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.placement.role import Role
from shared.watch.stack_watch import StackWatch
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import GatewayRig, wait_until
from tests.services.profiler.profiling import KEY, executor_info, until

ROOT = Path(__file__).parents[4]
BLOCKS = BlockOwners(online=10, shared=1, offline=20, paused=2, cached=30, empty=37)
GIVEN_KEY = "a-key-of-the-environment-0123456789abcdef"
WITH_KEY = {"Authorization": f"Bearer {GIVEN_KEY}"}
SLOS = ["ttft_p99<=1s"]
VERDICT = SloVerdict(SLOS[0], 1000.0, 200.0, True)
FACTS = WorkloadFacts("recorded", 200, 60.0, 100.0, 20.0)
PROFILE = SloProfileRecord(
    KEY,
    SLOS,
    Knob.BUDGET_MS,
    25.0,
    True,
    [],
    [Trial(25.0, [VERDICT], True, 1, 0, 1.0, 2.0, 1.0)],
    FACTS,
    "simulator",
    7.0,
)


def key_command(*arguments: str) -> str:
    """The last word that ``slackwater key`` prints."""
    done = run_slackwater("key", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def beat(executor_id: str = "executor-0", steps: int = 0, offline_tokens: int = 0) -> Heartbeat:
    step_ms = LatencyHistogram()
    step_ms.add(20.0)
    counters = ExecutorCounters(steps, offline_tokens=offline_tokens, entrant_tokens_planned=1200)
    counters.entrant_tokens_computed = 1100
    info = executor_info(executor_id, num_blocks=100)
    return Heartbeat(info, counters, False, 1, 2, 3, 4, 69, blocks=BLOCKS, step_ms=step_ms)


def served(ttft_ms: float, executor_id: str = "executor-0") -> OnlineServed:
    ttft = LatencyHistogram()
    ttft.add(ttft_ms)
    return OnlineServed(executor_id, "g", 0.0, None, 1, [], OnlineLatencies(ttft))


def batch(**changes: object) -> BatchRecord:
    record = BatchRecord("batch_1", "/v1/completions", "file_1", "24h", 100, 200, "in_progress")
    return msgspec.structs.replace(record, **({"request_counts": RequestCounts(50, 20)} | changes))


def test_a_row_is_of_all_executors_together() -> None:
    watch, history = StackWatch(), History(HttpTally())
    history.record(watch, 0.5, 1000.04)
    for second in (1.0, 3.0):
        for executor_id in ("executor-0", "executor-1"):
            watch.on_heartbeat(second, beat(executor_id, steps=int(second), offline_tokens=int(100 * second)))
    watch.on_budget(KEY, BudgetRecord(KEY, 25.0, BudgetSource.FIXED))
    watch.on_served(3.0, served(200.0))
    watch.on_batch(3.0, "batch_1", batch())
    history.record(watch, 3.5, 1003.0)
    nothing, row = (dict(zip(COLUMNS, each, strict=True)) for each in history.since(0))
    assert nothing["unix_s"] == 1000.0 and nothing["online_running"] == nothing["kv_online"] == 0
    assert {nothing[name] for name in ("offline_tokens_per_s", "step_mean_ms", "budget_ms", "ttft_p99_ms")} == {None}
    assert [row[f"{name}"] for name in ("online_waiting", "online_running", "offline_running")] == [2, 4, 8]
    assert (row["lines_left"], row["offline_tokens_per_s"], row["budget_ms"]) == (30, 200.0, 25.0)
    assert row["step_mean_ms"] == pytest.approx(20.0) and row["ttft_p99_ms"] == pytest.approx(200.0, rel=0.02)
    assert row["tbt_p50_ms"] is None
    assert [row[name] for name in COLUMNS if name.startswith("kv_")] == [20, 2, 40, 4, 60, 74]


def test_an_executor_says_of_which_pool_it_is() -> None:
    def told(*roles: Role) -> list[str]:
        watch = StackWatch()
        for number, role in enumerate(roles):
            alone = beat(f"executor-{number}")
            info = msgspec.structs.replace(alone.info, role=role, kv_link="sim")
            watch.on_heartbeat(1.0, msgspec.structs.replace(alone, info=info))
        parts = Parts({"model": "model"}, HttpTally())
        return [ExecutorState.of(view, parts).role_text for view in watch.executors(1.0)]

    assert told(Role.MIXED) == [""]
    assert told(Role.STRICT) == ["strict, acts as mixed"]
    assert told(Role.STRICT, Role.RELAXED) == ["strict", "relaxed"]


def test_the_history_has_an_end_and_tells_what_is_new() -> None:
    watch, history = StackWatch(), History(HttpTally())
    for second in range(SPAN_S + 10):
        history.record(watch, float(second), float(second))
    assert len(history.since(0)) == SPAN_S and history.since(0)[0][0] == 10.0
    assert [row[0] for row in history.since(history.num_recorded - 2)] == [SPAN_S + 8.0, SPAN_S + 9.0]
    assert history.since(history.num_recorded) == []


def test_hours_and_days_have_rows_of_their_own() -> None:
    watch, tally = StackWatch(), HttpTally()
    history = History(tally)
    seconds, rows = {"hour": 10, "day": 300}, {"hour": 360, "day": 288}
    for second in range(3 * 86_400 // 10):
        now_s = 10.0 * second + 5
        watch.on_served(now_s, served(200.0 if second % 7 else 800.0))
        tally.answered(now_s, 404, None)
        history.record(watch, now_s, now_s)
    for name, row_s in seconds.items():
        kept = [dict(zip(COLUMNS, row, strict=True)) for row in history.coarse(name)]
        assert len(kept) in (rows[name], rows[name] + 1)
        times = [row["unix_s"] for row in kept]
        assert all(after - before == row_s for before, after in pairwise(times[:-1]))
        assert times[-1] == now_s and kept[-2]["http_client_errors"] == pytest.approx(6.0)
    day = [dict(zip(COLUMNS, row, strict=True)) for row in history.coarse("day")]
    assert day[-2]["ttft_p99_ms"] == pytest.approx(800.0, rel=0.02), "the largest of its time"
    assert day[-2]["tbt_p99_ms"] is None


def test_answers_are_tallied_by_the_minute_and_forgotten_after_an_hour() -> None:
    tally = HttpTally()
    for now_s, status, refused in ((10.0, 200, None), (20.0, 404, None), (30.0, 503, "wait"), (1900.0, 500, None)):
        tally.answered(now_s, status, refused)
    state = tally.last_hour(1901.0)
    assert (state.num_answered, state.errors) == (4, {"404": 1, "503": 1, "500": 1})
    assert state.refusals == {"wait": 1}
    assert (tally.num_client_errors, tally.num_server_errors, tally.num_refused) == (1, 1, 1)
    later = tally.last_hour(3700.0)
    assert (later.num_answered, later.errors, later.refusals) == (1, {"500": 1}, {})


@contextlib.asynccontextmanager
async def running(hub: DashboardHub) -> AsyncIterator[None]:
    task = asyncio.create_task(hub.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def hub(bus: Bus) -> AsyncIterator[DashboardHub]:
    made = DashboardHub(bus, SystemClock(), {"model": "model"}, HttpTally())
    async with running(made):
        yield made


def data_of(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n")
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


async def next_of(hub: DashboardHub, seen: int) -> tuple[int, dict[str, Any]]:
    event = await asyncio.wait_for(hub.next_event(seen), 10)
    assert event is not None
    return event[0], data_of(event[1])


async def test_everybody_gets_the_same_snapshot_and_who_missed_one_gets_all(hub: DashboardHub) -> None:
    async with hub.viewer(), hub.viewer():
        number, first = await next_of(hub, 0)
        assert tuple(first["columns"]) == COLUMNS and first["now"]["model"] == "model"
        (event, same) = await asyncio.gather(hub.next_event(number), hub.next_event(number))
        assert event is not None and same is not None and event[1] is same[1]
        assert event[0] == number + 1 and "columns" not in data_of(event[1])
        number, third = await next_of(hub, event[0])
        late_number, late = await next_of(hub, number - 2)
        assert late_number == number and late["columns"] and late["now"] == third["now"]
        assert len(late["rows"]) > len(third["rows"]) > 0


def test_of_many_keys_those_that_were_used_last_are_told() -> None:
    tally = KeyTally()
    for number in range(MAX_NAMES + 5):
        for name in ("always", f"once-{number}"):
            tally.answered(name, 200, None)
    tally.generated("always", 3, 4)
    uses = tally.uses()
    assert len(uses) == MAX_NAMES and "once-0" not in uses
    assert (uses["always"].requests, uses["always"].output_tokens) == (MAX_NAMES + 5, 4)


class EarlyClock(SystemClock):
    """By which every sleep ends early."""

    def monotonic_s(self) -> float:
        return 0.99 * super().monotonic_s()


async def test_there_is_one_row_a_second_though_the_loop_wakes_early(bus: Bus) -> None:
    hub = DashboardHub(bus, EarlyClock(), {"model": "model"}, HttpTally())
    async with running(hub):
        await until(lambda: hub.history().num_recorded >= 4)
        times = [row[0] or 0.0 for row in hub.history().since(0)]
    assert all(later - earlier > 0.5 for earlier, later in pairwise(times)), times


async def test_how_long_all_lines_take_is_the_same_for_who_sees_few_of_them(bus: Bus, hub: DashboardHub) -> None:
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    owners = {"batch_1": "quick", "batch_2": "slow"}
    for done in (0, 30):
        for each, owner in owners.items():
            counts = RequestCounts(50, done if owner == "quick" else 0)
            await batches.put(each, batch(id=each, owner=owner, request_counts=counts))
        await until(lambda: hub.lines_left() == 100 - done)  # noqa: B023 (over within the turn)
    shown = {}
    async with hub.viewer():
        for owner in ("", "slow"):
            event = await asyncio.wait_for(hub.next_event(0, Tenant(owner, is_admin=not owner)), 10)
            assert event is not None
            shown[owner] = data_of(event[1])["now"]
    everything, own = shown[""], shown["slow"]
    ids = [[each["id"] for each in now["batches"]] for now in (everything, own)]
    assert ids == [["batch_1", "batch_2"], ["batch_2"]]
    assert (own["num_open"], own["lines_left"], own["left_s"]) == (2, 70, everything["left_s"])
    assert not own["batches"][0]["lines_per_s"] and own["left_s"] > 0


async def test_nobody_is_asked_while_nobody_looks(bus: Bus, hub: DashboardHub) -> None:
    num_asked = 0

    async def pong(_: object) -> ServiceStatus:
        nonlocal num_asked
        num_asked += 1
        told = {"preset": "blendserve", "compute_density": 1.27, "output_length_error": 0.2, "plans": 7}
        return ServiceStatus("offline-queue", 1, "ok", told)

    await bus.serve(subjects.PING, object, pong)
    async with hub.viewer():
        _, before = await next_of(hub, 0)
    asked, recorded = num_asked, hub.history().num_recorded
    assert asked > 0 and before["now"]["preset"] == "blendserve"
    assert before["now"]["order"] == {"compute_density": 1.27, "output_length_error": 0.2}
    await until(lambda: hub.history().num_recorded >= recorded + 2)
    assert num_asked <= asked + 1, "one question may have been under way"
    async with hub.viewer():
        _, after = await next_of(hub, 0)
    assert len(after["rows"]) >= len(before["rows"]) + 2, "rows are kept all the same"


async def test_a_snapshot_tells_executors_batches_and_the_budget_with_its_evidence(bus: Bus, hub: DashboardHub) -> None:
    status = SloStatus(
        KEY, SloState.PROFILED, 25.0, BudgetSource.SLO, [VERDICT], 25.0, PROFILE.profiled_at_s, "first", slos=SLOS
    )

    async def report(_: object) -> SloReport:
        return SloReport(SLOS, [status, msgspec.structs.replace(status, profile_key="of-executors-that-left")])

    await bus.serve(subjects.SLO_STATUS, object, report)
    await (await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)).put(KEY, BudgetRecord(KEY, 25.0, BudgetSource.SLO))
    profiles = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
    await profiles.put(slo_profile_key(KEY, SLOS, Knob.BUDGET_MS), PROFILE)
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.put("batch_1", batch())
    counts = RequestCounts(50, 20, 3)
    errors = LineErrors([LineError("invalid_json", f"what is wrong with {line}", line) for line in range(1, 6)])
    ended = {"status": "failed", "failed_at": 150, "request_counts": counts, "errors": errors}
    await batches.put("batch_2", batch(id="batch_2", error_file_id="file_2", metadata={"name": "nightly"}, **ended))
    async with hub.viewer():
        number, now = 0, {"executors": [], "ended": [], "budgets": []}
        while not (now["executors"] and now["ended"] and now["budgets"] and now["budgets"][0]["profile"]):
            await bus.publish(subjects.heartbeat("executor-0"), beat())
            await bus.publish(subjects.online("executor-0"), served(200.0))
            number, event = await next_of(hub, number)
            now = event["now"]
    assert len(hub.answers.slos) == 2 and list(hub.live_slos()) == [KEY], "for metrics"
    (executor,) = now["executors"]
    told = executor["beat"]
    assert told["blocks"] == {"online": 10, "shared": 1, "offline": 20, "paused": 2, "cached": 30, "empty": 37}
    assert executor["budget_ms"] == 25.0 and executor["step"]["mean_ms"] == pytest.approx(20.0)
    entrants = told["counters"]["entrant_tokens_planned"], told["counters"]["entrant_tokens_computed"]
    assert entrants == (1200, 1100)
    assert now["online"]["ttft"]["num_samples"] >= 1 and now["online"]["tbt"]["p99_ms"] is None
    assert [(each["id"], each["done"], each["ended_at"]) for each in now["batches"]] == [("batch_1", 20, None)]
    assert [(each["id"], each["done"], each["ended_at"]) for each in now["ended"]] == [("batch_2", 23, 150)]
    (failed,) = now["ended"]
    assert failed["why"] == [f"line {line}: what is wrong with {line}" for line in (1, 2, 3)]
    assert (failed["num_errors"], failed["error_file_id"], failed["metadata"]) == (5, "file_2", {"name": "nightly"})
    (budget,) = now["budgets"]
    assert (budget["source"], budget["slo"]["state"], budget["slo"]["measured"][0]["met"]) == ("slo", "profiled", True)
    assert budget["profile"]["trials"][0]["verdicts"][0]["value_ms"] == 200.0
    assert now["unwell"] == [f"{name} does not answer" for name in ("offline-queue", "predictor", "profiler")]


async def test_slos_of_executors_without_a_budget_are_told(bus: Bus, hub: DashboardHub) -> None:
    note = "preset bros has no latency budget to keep them"
    status = SloStatus(KEY, SloState.FAILED, 0.0, BudgetSource.SLO_START, [VERDICT], note=note, slos=SLOS)

    async def report(_: object) -> SloReport:
        return SloReport(SLOS, [status, msgspec.structs.replace(status, profile_key="of-executors-that-left")])

    await bus.serve(subjects.SLO_STATUS, object, report)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    async with hub.viewer():
        number, now = 0, {"slos": []}
        while not now["slos"]:
            await bus.publish(subjects.heartbeat("executor-0"), beat())
            number, event = await next_of(hub, number)
            now = event["now"]
        assert (now["slos"], now["budgets"]) == ([msgspec.to_builtins(status)], [])
        await budgets.put(KEY, BudgetRecord(KEY, 25.0, BudgetSource.SLO))
        while now["slos"]:
            number, event = await next_of(hub, number)
            now = event["now"]
        assert [each["slo"]["note"] for each in now["budgets"]] == [note]


@pytest.fixture
async def hub_of_two(bus: Bus) -> AsyncIterator[DashboardHub]:
    made = DashboardHub(bus, SystemClock(), {"model": "First", "other": "Second"}, HttpTally())
    async with running(made):
        yield made


async def test_each_of_several_models_is_shown_by_itself(bus: Bus, hub_of_two: DashboardHub) -> None:
    async def pong(_: object) -> ServiceStatus:
        return ServiceStatus("offline-queue-other", 1, "ok", {"model": "other", "preset": "bros"})

    def of_other() -> Heartbeat:
        beaten = beat()
        spec = msgspec.structs.replace(beaten.info.spec, model="other")
        info = msgspec.structs.replace(beaten.info, executor_id="executor-1", spec=spec, profile_key="other.key")
        return msgspec.structs.replace(beaten, info=info)

    await bus.serve(subjects.PING, object, pong)
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.put("batch_1", batch())
    await batches.put("batch_2", batch(id="batch_2", model_name="other"))
    shown: dict[str, dict[str, Any]] = {}

    async def look(model: str) -> None:
        seen, now = 0, {"executors": []}
        while not (now["executors"] and (model or len(now["executors"]) == 2) and now["batches"]):
            for told in (beat(), of_other()):
                await bus.publish(subjects.heartbeat(told.info.executor_id), told)
            await bus.publish(subjects.online("executor-1"), served(200.0, "executor-1"))
            event = await asyncio.wait_for(hub_of_two.next_event(seen, model=model), 10)
            assert event is not None
            seen, now = event[0], data_of(event[1])["now"]
        shown[model] = now

    async with hub_of_two.viewer():
        for model in ("", "First", "Second", "Nobody"):
            await look(model)
        await batches.delete("batch_2")
        await until(lambda: not hub_of_two._parts.of("Second").watch.batches(0.0, lambda record: True))
    assert all(now["models"] == ["First", "Second"] for now in shown.values())
    told = {
        model: (
            now["model"],
            [each["beat"]["info"]["executor_id"] for each in now["executors"]],
            [each["id"] for each in now["batches"]],
            now["preset"],
        )
        for model, now in shown.items()
    }
    everything = ("First, Second", ["executor-0", "executor-1"], ["batch_1", "batch_2"], "bros")
    assert told == {
        "": everything,
        "Nobody": everything,
        "First": ("First", ["executor-0"], ["batch_1"], None),
        "Second": ("Second", ["executor-1"], ["batch_2"], "bros"),
    }
    assert [each["model"] for each in shown[""]["executors"]] == ["First", "Second"]
    assert [each["model"] for each in shown[""]["batches"]] == ["First", "Second"]
    samples = {model: now["online"]["ttft"]["num_samples"] for model, now in shown.items()}
    assert samples["First"] == 0 < samples["Second"]
    assert "offline-queue-model does not answer" in shown[""]["unwell"]


async def test_a_profile_is_read_again_when_there_is_a_newer_one(bus: Bus) -> None:
    told = SloStatus(KEY, SloState.RECORDING, 25.0, BudgetSource.SLO_START, [], slos=SLOS)

    async def report(_: object) -> SloReport:
        return SloReport(SLOS, [told])

    await bus.serve(subjects.SLO_STATUS, object, report)
    profiles = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
    questions = StackQuestions(bus, SystemClock(), ["model"])
    assert (await questions.ask()).profiles == {}
    for at_s, value in ((7.0, 25.0), (8.0, 20.0)):
        found = msgspec.structs.replace(PROFILE, value=value, profiled_at_s=at_s)
        await profiles.put(slo_profile_key(KEY, SLOS, Knob.BUDGET_MS), found)
        told = msgspec.structs.replace(told, profiled_at_s=at_s)
        assert (await questions.ask()).profiles[KEY].value == value


async def test_there_is_an_end_to_viewers_and_to_the_hub(hub: DashboardHub) -> None:
    async with contextlib.AsyncExitStack() as viewers:
        for _ in range(MAX_VIEWERS):
            await viewers.enter_async_context(hub.viewer())
        with pytest.raises(Refusal, match=f"{MAX_VIEWERS} dashboards are open"):
            await viewers.enter_async_context(hub.viewer())
        number, _ = await next_of(hub, 0)
        hub.close()
        assert await hub.next_event(number) is None
    assert hub.num_viewers == 0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway("--require-keys", "always", "--api-key", GIVEN_KEY)
        yield made


WATCHES = "completions,files,batches,watch"  # and changes nothing


def test_events_need_a_key_and_come_each_second(rig: GatewayRig) -> None:
    assert rig.http.get("/dashboard/events").status_code == 401
    with rig.http.stream("GET", "/dashboard/events", headers=WITH_KEY) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line)
        first, second = (json.loads(next(lines).removeprefix("data: ")) for _ in range(2))
    assert first["columns"] and first["now"]["executors"] == [] and len(second["rows"]) >= 1
    wait_until(lambda: rig.metric("slackwater_http_answering") <= 1, "the viewer's stream stays")


def test_what_a_page_may_do_is_what_its_key_may(rig: GatewayRig) -> None:
    made = key_command("create", "watcher", "--endpoints", WATCHES, "--nats", rig.nats_url)
    user = {"Authorization": f"Bearer {made}"}
    wait_until(lambda: rig.http.get("/v1/models", headers=user).status_code == 200, "the key is not known")
    assert rig.http.get("/v1/files/none", headers=user).status_code == 404
    own = rig.http.get("/dashboard/access", headers=user).json()
    assert (own["role"], own["key_name"], list(own["keys"])) == ("user", "watcher", ["watcher"])
    use = own["keys"]["watcher"]
    assert use["requests"] >= 2 and use["errors"] >= 1 and use["output_tokens"] == 0
    everybody = rig.http.get("/dashboard/access", headers=WITH_KEY).json()
    assert (everybody["role"], everybody["key_name"]) == ("admin", "environment")
    assert everybody["keys"]["watcher"]["requests"] == use["requests"], "watching is no use"
    for path in ("/executors/executor-0/drain", "/executors/executor-0/undrain", "/executors/executor-0/role/mixed"):
        refused = rig.http.post(path, headers=user)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert rig.http.post(path, headers=WITH_KEY).status_code == 404, "no such executor"
    assert rig.http.get("/status", headers=user).status_code == 200
    assert rig.http.get("/dashboard/history/day").status_code == 401
    assert rig.http.get("/dashboard/history/week", headers=user).status_code == 400
    hour = rig.http.get("/dashboard/history/hour", headers=user).json()
    assert tuple(hour["columns"]) == COLUMNS and hour["rows"]


def test_a_user_cancels_only_batches_of_its_own(rig: GatewayRig) -> None:
    keys = {}
    for name in ("one", "other"):
        keys[name] = {
            "Authorization": "Bearer " + key_command("create", name, "--endpoints", WATCHES, "--nats", rig.nats_url)
        }
        wait_until(lambda name=name: rig.http.get("/v1/models", headers=keys[name]).status_code == 200, "unknown key")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
    upload = {"file": ("in.jsonl", json.dumps(line).encode())}
    file = rig.http.post("/v1/files", headers=keys["one"], files=upload, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = rig.http.post("/v1/batches", headers=keys["one"], json=body).json()["id"]
    path = f"/v1/batches/{batch_id}/cancel"
    assert rig.http.post(path, headers=keys["other"]).status_code == 404
    assert rig.http.post(path, headers=keys["one"]).json()["status"] == "cancelling"


def test_a_page_is_let_go_when_its_key_is_revoked_and_when_the_gateway_stops(rig: GatewayRig) -> None:
    made = key_command("create", "viewer", "--nats", rig.nats_url)
    with rig.http.stream("GET", "/dashboard/events", headers={"Authorization": f"Bearer {made}"}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        key_command("revoke", "viewer", "--nats", rig.nats_url)
        assert all(line == "" or line.startswith("data: ") for line in lines), "it ends, and as it should"
    with rig.http.stream("GET", "/dashboard/events", headers=WITH_KEY) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        rig.signal("gateway", signal.SIGTERM)
        assert all(line == "" or line.startswith("data: ") for line in lines), "it ends, and as it should"
    assert rig.wait("gateway") == 0
    rig.start_gateway("--require-keys", "always", "--api-key", GIVEN_KEY)


def test_the_page_and_its_files_are_for_everybody_and_bound_to_this_host(rig: GatewayRig) -> None:
    page = rig.http.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for name in sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()):
        answer = rig.http.get(f"/dashboard/static/{name}")
        assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if name.endswith(".js"):
            assert answer.headers["content-type"].startswith("text/javascript")
        again = rig.http.get(f"/dashboard/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
    assert rig.http.get("/dashboard/static/nothing.js").status_code == 404


def test_the_page_is_there_while_no_more_files_can_be_opened(rig: GatewayRig) -> None:
    with httpx.Client(base_url=rig.url) as client:
        client.get("/health")
        with rig.no_more_files("gateway"):
            page, style = client.get("/"), client.get("/dashboard/static/style.css")  # over the same connection
    assert page.content == (FOLDER / "index.html").read_bytes()
    assert style.content == (FOLDER / "style.css").read_bytes()


def test_what_is_vendored_is_what_was_published() -> None:
    (folder,) = (FOLDER / "vendor").iterdir()
    package, *sums = (folder / "SHA256SUMS").read_text().splitlines()
    assert package == f"# {PACKAGE} {INTEGRITY}"
    named = dict(reversed(line.split("  ")) for line in sums)
    assert named.keys() == set(FILES.values()) and {path.name for path in folder.iterdir()} == {*named, "SHA256SUMS"}
    for name, digest in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_an_installation_has_all_of_the_pages_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["services.gateway"]
    package = FOLDER.parent
    packaged = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    assert packaged == {path for path in FOLDER.rglob("*") if path.is_file()}
