"""Whole replays against a real HTTP server: phases, the report's shape, batches and plain requests."""

import asyncio
import io
import itertools
import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.client.abilities import COMPLETIONS, Abilities, RequestMaker
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError, WorkloadError
from loadgen.offline.batch import CANCEL_TIMEOUT_S, OfflineBatch
from loadgen.offline.bodies import OfflineMaker
from loadgen.offline.requests import OfflineRequests
from loadgen.options import WorkloadOptions
from loadgen.progress import NoProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.report import Report
from loadgen.report.slo import parse_slo
from loadgen.report.table import print_report
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.prompts import text_prompts
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace
from shared.json_text import json_text
from tests.loadgen.openai_server import OpenAIServer, letters_per_three, serve

FIGURES = {"mean", "p50", "p90", "p99"}
LATENCIES = {"ttft_ms", "tbt_ms", "tpot_ms", "normalized_latency_ms"}


@pytest.fixture(autouse=True)
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of half a second are over soon after it."""
    monkeypatch.setattr("loadgen.offline.batch.POLL_S", 0.1)


@pytest.fixture
def plan(trace_file: Path, prompt_file: Path) -> ReplayPlan:
    """The whole of both files in half a second, or as long as the backlog's share of it takes."""
    scaling = Scaling(duration_s=0.5)
    return ReplayPlan(
        scaling.apply(read_trace(trace_file)), load_backlog(prompt_file, max_tokens=2), scaling, str(trace_file)
    )


async def run(plan: ReplayPlan, server: OpenAIServer) -> Report:
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(plan, client, NoProgress())
        await replay.prepare()
        await replay.run()
        return replay.report(partial=False)


def keys(value: Any) -> Any:
    """The nesting of an object's keys."""
    return {key: keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None


async def test_the_report_has_the_one_schema(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.busy_per_s = 0.25
    slos = [parse_slo("ttft_p99<=60s"), parse_slo("tbt_mean<=1000x")]
    made = await run(replace(plan, baseline=True, slos=slos), server)
    report = json.loads(json_text(made))
    figures = dict.fromkeys(FIGURES)
    latencies = dict.fromkeys(LATENCIES, figures)
    online = latencies | {"send_lag_ms": figures}
    online |= dict.fromkeys(("requests", "completed", "errors", "unfinished", "requests_per_s"))
    online |= dict.fromkeys(("input_tokens_per_s", "output_tokens_per_s", "under_way_share", "overload"))
    offline = dict.fromkeys(("mode", "backlog", "completed", "errors", "elapsed_s", "exhausted", "requests_per_s"))
    offline |= dict.fromkeys(("output_tokens_per_s", "total_tokens_per_s"))
    facts = dict.fromkeys(json.loads(json_text(made))["run"])
    assert keys(report) == {
        "run": facts,
        "online": online,
        "offline": offline,
        "baseline": {"online": online, "offline": offline, "idle_share": None},
        "interference": latencies,
        "harvest": None,
        "slo": None,
        "partial": None,
        "notes": None,
    }
    assert {"date", "url", "model", "trace", "prompts", "duration_s", "seed", "qps", "length_scale"} <= set(facts)
    assert [set(slo) for slo in report["slo"]] == [{"expr", "bound", "value", "met", "attainment"}] * 2
    assert [slo["met"] for slo in report["slo"]] == [True, True]
    assert report["online"]["requests"] == report["baseline"]["online"]["requests"] == 20
    assert report["baseline"]["idle_share"] == pytest.approx(0.75, abs=0.2)
    ours, alone = report["offline"], report["baseline"]["offline"]
    assert report["harvest"] == pytest.approx(
        ours["total_tokens_per_s"] / (alone["total_tokens_per_s"] * report["baseline"]["idle_share"])
    )


class Seen(NoProgress):
    """What has been told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.sent: list[tuple[int, int, int]] = []
        self.backlogs: set[int] = set()

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self.phases.append((name, num_requests, backlog))

    def online(self, sent: int, finished: int, failed: int) -> None:
        self.sent.append((sent, finished, failed))

    def offline(self, done: int, backlog: int) -> None:
        self.backlogs.add(backlog)


async def replayed(plan: ReplayPlan, server: OpenAIServer) -> tuple[Replay, Seen]:
    seen = Seen()
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(plan, client, seen)
        assert not replay.started
        await replay.prepare_and_run()
    assert replay.started
    return replay, seen


async def test_a_baseline_has_each_side_alone_before_both(plan: ReplayPlan, server: OpenAIServer) -> None:
    """The offline side for a share of the time; where there is but one side, it is alone anyway."""
    plan = replace(plan, offline_mode="requests", offline_only_share=0.4, scaling=Scaling(duration_s=0.25))
    replay, seen = await replayed(replace(plan, baseline=True), server)
    assert seen.phases == [("online only", 20, 0), ("offline only", 0, 1000), ("replay", 20, 1000)]
    outcomes = replay.outcomes()
    assert list(outcomes) == ["online only", "offline only", "replay"]
    sides = [(each.online is not None, each.offline is not None) for each in outcomes.values()]
    assert sides == [(True, False), (False, True), (True, True)]
    windows = [each.window[1] - each.window[0] for each in outcomes.values() if each.window]
    assert windows == pytest.approx([0.25, 0.1, 0.25])
    assert [each.offline.elapsed_s for each in outcomes.values() if each.offline] == pytest.approx([0.1, 0.25])
    assert seen.sent[-1] == (20, 20, 0) and (1, 0, 0) in seen.sent and seen.backlogs == {1000}
    for changes, phases in (
        ({"prompts": [], "baseline": True}, [("online only", 20, 0), ("replay", 20, 0)]),
        ({"prompts": []}, [("replay", 20, 0)]),
        ({"requests": []}, [("replay", 0, 1000)]),
    ):
        changed = replace(plan, scaling=Scaling(duration_s=0.05), **changes)  # type: ignore[arg-type]
        assert (await replayed(changed, server))[1].phases == phases


async def test_a_backlog_is_marked_where_others_might_have_left_it_cached(
    plan: ReplayPlan, server: OpenAIServer
) -> None:
    """In the offline-only run, and in each where the plan says so; with what is the run's own."""
    plan = replace(plan, prompts=plan.prompts[:2], baseline=True, scaling=Scaling(duration_s=0.1))
    marks = []
    for mark_offline in (False, True):
        server.batches.clear()
        await run(replace(plan, mark_offline=mark_offline), server)
        alone, together = ([line["body"]["prompt"] for line in each["lines"]] for each in server.batches.values())
        marks.append(alone[0].removesuffix("prompt 0"))
        assert alone == [f"{marks[-1]}prompt {number}" for number in range(2)]
        assert together == (alone if mark_offline else ["prompt 0", "prompt 1"])
    assert all(re.fullmatch(r"Set [0-9a-f]+\.\n", mark) for mark in marks) and len(set(marks)) == 2


async def test_only_the_last_phase_is_drained(plan: ReplayPlan, server: OpenAIServer) -> None:
    """Nothing ends by itself before that."""

    class Hurrying(NoProgress):
        def phase(self, name: str, num_requests: int, backlog: int) -> None:
            server.batch_lines_done = backlog if name == "replay" else 0

    plan = replace(plan, prompts=plan.prompts[:60], baseline=True, drain=True, scaling=Scaling(duration_s=0.1))
    async with OpenAIClient(server.url, 10) as client:
        await Replay(plan, client, Hurrying()).prepare_and_run()
    assert [batch["status"] for batch in server.batches.values()] == ["cancelled", "completed"]


async def test_what_was_run_is_told(plan: ReplayPlan, server: OpenAIServer) -> None:
    plan = replace(plan, prompts=plan.prompts[:2], prompt_file="prompts.jsonl", scaling=Scaling(duration_s=0.1, seed=7))
    before = datetime.now(UTC).replace(microsecond=0)
    facts = (await run(plan, server)).run
    date = datetime.fromisoformat(facts.date)
    assert before <= date <= datetime.now(UTC) and date.microsecond == 0 and facts.date.endswith("+00:00")
    assert (facts.url, facts.model, facts.trace, facts.prompts) == (server.url, "tiny", plan.trace, "prompts.jsonl")
    assert (facts.prompt_form, facts.exact_output, facts.max_context) == ("token ids", True, 4096)
    assert (facts.duration_s, facts.seed, facts.time_scale, facts.qps) == (0.1, 7, 1.0, None)


async def test_a_run_that_is_stopped_tells_of_the_phase_that_it_was_in(plan: ReplayPlan, server: OpenAIServer) -> None:
    scaling = Scaling(duration_s=0.1)
    plan = replace(plan, baseline=True, offline_mode="requests", offline_only_share=600.0, scaling=scaling)
    server.max_answered = 25
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(plan, client, NoProgress())
        await replay.prepare()
        assert replay.report(partial=True).notes == []
        running = asyncio.create_task(replay.run())
        await server.until(lambda: server.num_refused > 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    report = replay.report(partial=True)
    assert report.partial and report.offline is None and report.baseline is not None
    told = [note for note in report.notes if "stopped" in note]
    assert len(told) == 1 and re.fullmatch(r"offline only: stopped after \d+\.\d of its 60 s", told[0])
    assert report.baseline.online is not None and report.baseline.online.completed == 20
    assert not any("stopped" in note for note in replay.report(partial=False).notes)


@pytest.mark.parametrize(
    ("served", "said"), [((), "does not serve model ; it serves: none"), (("a", "b"), "serves: a, b")]
)
async def test_a_model_that_is_not_there_is_named(
    plan: ReplayPlan, server: OpenAIServer, served: tuple[str, ...], said: str
) -> None:
    server.served = served
    with pytest.raises(ServerError, match=f"{said}$"):
        await run(replace(plan, model="c" if served else None), server)
    server.served = ("a", "b")
    for wanted, model in ((None, "a"), ("b", "b")):
        report = await run(replace(plan, prompts=plan.prompts[:1], requests=[], model=wanted), server)
        assert report.run.model == model


async def test_the_plans_context_goes_before_the_servers(plan: ReplayPlan, server: OpenAIServer) -> None:
    """Offline lengths are cut to it too; requests that fit are left as they are, and not spoken of."""
    lengths = [OfflinePrompt(2, num_prompt_tokens=100)]
    plan = replace(plan, prompts=lengths, max_context=22, scaling=Scaling(duration_s=0.1, length_scale=0.5))
    report = await run(plan, server)
    assert report.run.max_context == 22
    assert "11 online requests were cut to the context of 22 tokens" in report.notes
    assert max(len(body["prompt"]) + body["max_tokens"] for body in server.trace_bodies) == 22
    ((line,),) = (batch["lines"] for batch in server.batches.values())
    assert (len(line["body"]["prompt"]), line["body"]["max_tokens"]) == (21, 1)
    report = await run(replace(plan, max_context=None), server)
    assert report.run.max_context == 4096 and not any("were cut" in note for note in report.notes)


async def test_answers_that_may_be_shorter_are_told_of_where_there_are_any(
    plan: ReplayPlan, server: OpenAIServer
) -> None:
    server.takes_ignore_eos = False
    note = "the server does not take ignore_eos: answers may be shorter than the trace's"
    plan = replace(plan, prompts=plan.prompts[:1], scaling=Scaling(duration_s=0.05))
    report = await run(plan, server)
    assert note in report.notes and report.run.exact_output is False
    assert note not in (await run(replace(plan, requests=[]), server)).notes


async def test_a_server_that_takes_ignore_eos_and_does_not_keep_to_it_is_told_of(
    plan: ReplayPlan, server: OpenAIServer
) -> None:
    server.longest = 3
    plan = replace(plan, prompts=[])
    note = "replay: 20 answers are shorter than the trace's, though the server takes ignore_eos"
    assert note in (await run(plan, server)).notes
    server.longest = 4
    assert not any("shorter" in each for each in (await run(plan, server)).notes)


async def test_phases_share_lengths_and_no_prompt(plan: ReplayPlan, server: OpenAIServer) -> None:
    await run(replace(plan, prompts=[], baseline=True), server)
    bodies = server.trace_bodies
    assert len(bodies) == 40
    assert [len(body["prompt"]) for body in bodies[:20]] == [len(body["prompt"]) for body in bodies[20:]]
    assert len({tuple(body["prompt"][:8]) for body in bodies}) == 40
    assert all(body["ignore_eos"] and body["max_tokens"] == 4 for body in bodies)


async def test_the_backlog_is_one_real_batch_cancelled_at_the_end(plan: ReplayPlan, server: OpenAIServer) -> None:
    report = await run(plan, server)
    (batch,) = server.batches.values()
    assert batch["status"] == "cancelled"
    assert [line["body"]["prompt"] for line in batch["lines"]] == [f"prompt {index}" for index in range(1000)]
    assert all(line["body"]["model"] == "tiny" for line in batch["lines"])
    assert report.offline is not None
    assert (report.offline.mode, report.offline.exhausted) == ("batch", False)
    assert 0 < report.offline.completed < 1000
    assert report.offline.output_tokens_per_s == pytest.approx(report.offline.requests_per_s * 2)
    assert report.offline.total_tokens_per_s == pytest.approx(report.offline.requests_per_s * 6)


async def test_a_server_that_is_away_for_a_moment_ends_nothing(
    plan: ReplayPlan, server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.failing_polls, server.failing_cancels = 2, 2
    report = await run(plan, server)
    assert [text for text in caplog.messages if "how its batches are" in text][1:] == [], "it is told once"
    assert "how its batches are" in caplog.text
    (batch,) = server.batches.values()
    assert (batch["status"], server.failing_polls, server.failing_cancels) == ("cancelled", 0, 0)
    assert report.online is not None
    assert report.online.completed == 20


class DoneProgress(NoProgress):
    """Knows when so many are done."""

    def __init__(self, done: int) -> None:
        self.reached = asyncio.Event()
        self._done = done

    def offline(self, done: int, backlog: int) -> None:
        if done >= self._done:
            self.reached.set()


async def test_a_server_that_has_gone_for_good_is_not_asked_to_cancel_for_long(
    plan: ReplayPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.offline.batch.SILENT_S", 0.5)
    gone, progress = OpenAIServer(), DoneProgress(0)
    running, serving = serve(gone)
    async with OpenAIClient(gone.url, 10) as client:
        replay = Replay(replace(plan, requests=[]), client, progress)
        await replay.prepare()
        replaying = asyncio.create_task(replay.run())
        await progress.reached.wait()
        running.should_exit = True
        await serving
        await replaying
    (batch_id,) = gone.batches
    report = replay.report(partial=False)
    left, unknown = report.notes
    assert left == f"replay: {gone.url} has gone: not cancelled: {batch_id}"
    assert unknown.startswith("replay: the server did not tell how its batches were at the end")
    assert report.offline is not None


async def test_drain_lets_the_batch_finish(plan: ReplayPlan, server: OpenAIServer) -> None:
    await run(replace(plan, prompts=plan.prompts[:150], drain=True), server)
    (batch,) = server.batches.values()
    assert (batch["status"], batch["done"]) == ("completed", 150)


async def test_a_batch_that_the_server_ends_is_told_of(plan: ReplayPlan, server: OpenAIServer) -> None:
    class Expiring(NoProgress):
        def offline(self, done: int, backlog: int) -> None:
            if done:
                (batch,) = server.batches.values()
                batch["status"] = "expired"

    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(replace(plan, requests=[], scaling=Scaling(duration_s=30.0)), client, Expiring())
        await replay.prepare_and_run()
    notes = replay.report(partial=False).notes
    (batch_id,) = server.batches
    assert f"replay: batch {batch_id} ended before all of it was done: expired" in notes
    assert any("the backlog ran out after" in note for note in notes)


async def test_a_backlog_of_two_endpoints_is_no_batch(plan: ReplayPlan, server: OpenAIServer) -> None:
    """Which is said before anything runs."""
    prompts = [OfflinePrompt(2, text="a"), OfflinePrompt(2, messages=({"role": "user", "content": "b"},))]
    plan = replace(plan, prompts=prompts, baseline=True, scaling=Scaling(duration_s=0.2))
    with pytest.raises(
        WorkloadError, match="has /v1/chat/completions and /v1/completions: use --offline-mode requests"
    ):
        await run(plan, server)
    assert not server.trace_bodies and not server.batches
    report = await run(replace(plan, offline_mode="requests"), server)
    assert report.offline is not None and (report.offline.completed, report.offline.errors) == (2, 0)


async def test_no_files_stay_but_answers_that_were_waited_for(plan: ReplayPlan, server: OpenAIServer) -> None:
    await run(replace(plan, baseline=True), server)
    assert [batch["status"] for batch in server.batches.values()] == ["cancelled"] * 2
    assert server.files == {}
    await run(replace(plan, requests=[], prompts=plan.prompts[:50], drain=True), server)
    last = list(server.batches)[-1]
    assert list(server.files) == [f"{last}-output", f"{last}-error"]


async def test_lines_that_fail_before_the_window_are_counted_and_told(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.refused_prompts = ("prompt 3", "prompt 7")
    report = await run(replace(plan, prompts=plan.prompts[:20]), server)
    assert report.offline is not None
    assert (report.offline.completed, report.offline.errors, report.offline.exhausted) == (18, 2, True)
    assert "replay: 2 offline requests failed: 400: 0 tokens too many" in report.notes
    assert server.files == {}


async def test_files_that_cannot_be_deleted_are_told(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.deletes_files = False
    report = await run(plan, server)
    (note,) = (note for note in report.notes if "files" in note)
    assert note.startswith("replay: files of the backlog are still on the server: ") and note.endswith("files stay")


async def test_what_is_stopped_while_its_batch_is_created_cancels_it(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.creating.clear()
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(plan, client, NoProgress())
        running = asyncio.create_task(replay.prepare_and_run())
        await server.until(lambda: bool(server.batches))
        running.cancel()
        await asyncio.wait((running,), timeout=0.1)  # time for it to leave, if it would
        server.creating.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ([batch["status"] for batch in server.batches.values()], server.files) == (["cancelled"], {})
    assert replay.report(partial=True).notes == ["replay: stopped before its window began"]


async def test_what_is_stopped_while_it_drains_cancels_its_batch(
    plan: ReplayPlan, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains, stop = asyncio.Event(), OfflineBatch.stop

    async def note(batch: OfflineBatch, drain: bool) -> None:
        drains.set()
        await stop(batch, drain)

    monkeypatch.setattr(OfflineBatch, "stop", note)
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(replace(plan, drain=True, scaling=Scaling(duration_s=0.1)), client, NoProgress())
        running = asyncio.create_task(replay.prepare_and_run())
        await drains.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ([batch["status"] for batch in server.batches.values()], server.files) == (["cancelled"], {})
    assert replay.report(partial=True).notes[0] == "replay: stopped at its end"


@pytest.mark.parametrize("drain", [False, True])
async def test_what_is_stopped_twice_waits_for_nobody(plan: ReplayPlan, server: OpenAIServer, drain: bool) -> None:
    server.failing_cancels, server.batch_lines_per_s = 1_000_000, 10  # and it takes longer than anybody waits
    progress = DoneProgress(10 if drain else 0)
    duration_s = 0.1 if drain else 60.0
    async with OpenAIClient(server.url, 10) as client:
        replay = Replay(replace(plan, drain=drain, scaling=Scaling(duration_s=duration_s)), client, progress)
        running = asyncio.create_task(replay.prepare_and_run())
        await progress.reached.wait()
        running.cancel()
        await server.until(lambda: server.failing_cancels < 1_000_000)
        running.cancel()
        ended, _ = await asyncio.wait((running,), timeout=CANCEL_TIMEOUT_S / 2)
        assert ended and running.cancelled()


async def test_tokens_of_an_exhausted_batch_come_from_its_output(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.live_usage = False
    server.batch_lines_per_s = 400
    report = await run(replace(plan, requests=[], prompts=plan.prompts[:50]), server)
    assert report.offline is not None
    assert report.offline.exhausted
    assert report.offline.output_tokens_per_s == pytest.approx(report.offline.requests_per_s * 2)
    assert any("the backlog ran out" in note for note in report.notes)


async def test_plain_requests_keep_to_their_concurrency(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.has_batches, server.gap_s = False, 0.02  # longer than a client takes for a request
    report = await run(replace(plan, requests=[], offline_concurrency=3), server)
    assert report.offline is not None
    assert report.offline.mode == "requests"
    assert report.offline.completed > 0
    assert server.max_active == 3
    assert report.offline.total_tokens_per_s is not None
    assert not server.batches


async def test_offline_requests_carry_what_the_server_wants_beside(plan: ReplayPlan, server: OpenAIServer) -> None:
    plan = replace(plan, offline_extra={"priority": 1}, offline_mode="requests", offline_concurrency=2)
    await run(plan, server)
    online = [body for body in server.trace_bodies if body["max_tokens"] == 4]
    offline = [body for body in server.trace_bodies if body["max_tokens"] == 2]
    assert len(online) == 20 and not any("priority" in body for body in online)
    assert offline and all(body["priority"] == 1 for body in offline)


@pytest.mark.parametrize("mode", ["requests", "batch"])
async def test_what_is_done_while_warming_up_does_not_count(plan: ReplayPlan, server: OpenAIServer, mode: str) -> None:
    report = await run(replace(plan, warm_up_s=0.4, offline_mode=mode, offline_concurrency=2), server)
    assert report.online is not None and report.offline is not None
    offline_s = [
        at_s for at_s, body in zip(server.arrived_s, server.bodies, strict=True) if body["max_tokens"] == 2
    ] or [batch["began_s"] for batch in server.batches.values()]
    online_s = [at_s for at_s, body in zip(server.arrived_s, server.bodies, strict=True) if body["max_tokens"] == 4]
    assert min(offline_s) < min(online_s)
    done = len(offline_s) if mode == "requests" else next(iter(server.batches.values()))["done"]
    assert 0 < report.offline.completed < done


async def test_a_batch_s_tokens_are_counted_as_they_come(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.generated_per_s, server.batch_lines_per_s = 5000.0, 100.0
    report = await run(replace(plan, requests=[], count_generated=True), server)
    assert report.offline is not None and report.offline.output_tokens_per_s is not None
    assert report.offline.output_tokens_per_s > 10 * report.offline.requests_per_s  # two tokens a request have ended
    output = report.offline.output_tokens_per_s
    assert report.offline.total_tokens_per_s == pytest.approx(3 * output, rel=0.01)  # four of the prompt for two
    lengths = [OfflinePrompt(2, num_prompt_tokens=8) for _ in range(1000)]
    report = await run(replace(plan, requests=[], prompts=lengths, count_generated=True), server)
    assert report.offline is not None and report.offline.output_tokens_per_s is not None
    assert report.offline.total_tokens_per_s == pytest.approx(5 * report.offline.output_tokens_per_s, rel=0.01)


async def test_plain_requests_end_with_the_backlog(plan: ReplayPlan, server: OpenAIServer) -> None:
    plan = replace(
        plan, requests=[], prompts=plan.prompts[:10], offline_mode="requests", scaling=Scaling(duration_s=60)
    )
    report = await run(plan, server)
    assert report.offline is not None
    assert (report.offline.completed, report.offline.exhausted) == (10, True)
    assert report.offline.elapsed_s < 60


async def test_plain_requests_go_again_to_a_server_that_takes_none_for_a_while(
    plan: ReplayPlan, server: OpenAIServer
) -> None:
    server.fail_with = 503
    plan = replace(plan, requests=[], prompts=plan.prompts[:30], offline_mode="requests", offline_concurrency=3)
    running = asyncio.create_task(run(replace(plan, scaling=Scaling(duration_s=60)), server))
    await server.until(lambda: server.num_refused >= 5)
    server.fail_with = None
    report = await running
    assert report.offline is not None
    assert (report.offline.completed, report.offline.errors, report.offline.exhausted) == (30, 0, True)
    again = f"replay: the server did not take offline requests, which went again: {server.num_refused} times"
    assert again in report.notes


async def test_plain_requests_that_wait_to_go_again_at_the_end_have_not_failed(
    plan: ReplayPlan, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pauses are longer than the window."""
    monkeypatch.setattr("loadgen.client.patience.PAUSES_S", (60.0,))
    server.fail_with = 503
    plan = replace(plan, requests=[], offline_mode="requests", offline_concurrency=3, scaling=Scaling(duration_s=1.0))
    report = await run(plan, server)
    assert report.offline is not None
    assert (report.offline.completed, report.offline.errors, server.num_refused) == (0, 0, 3)
    assert "replay: 3 offline requests waited at the end to go again: 503: out of order" in report.notes
    assert not any("failed" in note for note in report.notes)


async def test_plain_requests_wait_for_a_server_that_breaks_connections(plan: ReplayPlan) -> None:
    broken: asyncio.Queue[None] = asyncio.Queue()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        broken.put_nowait(None)

    gone = await asyncio.start_server(hang_up, "127.0.0.1")
    port = gone.sockets[0].getsockname()[1]
    abilities = Abilities(COMPLETIONS, token_ids=False, exact_output=False, batches=False)
    maker = OfflineMaker(RequestMaker(abilities, "tiny", text_prompts(None, None, "salt")))
    async with OpenAIClient(f"http://127.0.0.1:{port}", 10) as client, asyncio.timeout(60):
        offline = OfflineRequests(client, maker, plan.prompts[:30], lambda done, backlog: None, concurrency=3)
        now_s = time.perf_counter()
        running = asyncio.create_task(offline.run(now_s, now_s + 60))
        for _ in range(5):
            await broken.get()
        assert len(offline.records) == 3, "no other request is tried"
        gone.close()  # and none listens until the next does
        await gone.wait_closed()
        served, serving = serve(OpenAIServer(), port)
        await running
    served.should_exit = True
    await serving
    report = offline.report()
    assert (report.completed, report.errors, report.exhausted) == (30, 0, True)


async def test_a_backlog_that_is_drained_ends_soon_after_its_server_has_gone_for_good(
    plan: ReplayPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests that found it gone go again; those behind them go once, when nobody has reached it for as long."""
    monkeypatch.setattr("loadgen.client.patience.PATIENCE_S", 0.3)
    gone = OpenAIServer()
    running, serving = serve(gone)
    plan = replace(
        plan, requests=[], prompts=plan.prompts[:30], offline_mode="requests", offline_concurrency=3, drain=True
    )
    async with OpenAIClient(gone.url, 10) as client:
        replay = Replay(plan, client, NoProgress())
        await replay.prepare()
        running.should_exit = True
        await serving
        await replay.run()
    report = replay.report(partial=False)
    assert any(note.startswith("replay: 30 offline requests failed: ") for note in report.notes)
    (again,) = (note for note in report.notes if "went again" in note)
    assert int(again.split()[-2]) < 30, again


@pytest.mark.parametrize("status", [400, 429])
async def test_a_plain_request_that_is_refused_for_good_goes_once(
    plan: ReplayPlan, server: OpenAIServer, status: int
) -> None:
    """The second: as where a key's budget is used up, which the server says is not to be waited for."""
    server.fail_with, server.refuses_for_good = status, status == 429
    report = await run(replace(plan, requests=[], prompts=plan.prompts[:9], offline_mode="requests"), server)
    assert report.offline is not None
    assert (report.offline.completed, report.offline.errors, server.num_refused) == (0, 9, 9)
    assert f"replay: 9 offline requests failed: {status}: out of order" in report.notes


async def test_tokens_of_plain_requests_are_counted_as_those_of_a_batch(plan: ReplayPlan, server: OpenAIServer) -> None:
    """The prompts that are known, and not yet sent, count too: those of the first are no sample of the others."""
    lengths = [OfflinePrompt(2, num_prompt_tokens=8)] * 500 + [OfflinePrompt(2, num_prompt_tokens=32)] * 500
    plan = replace(plan, requests=[], prompts=lengths)
    server.gap_s, server.generated_per_s, server.batch_lines_per_s = 0.02, 5000.0, 100.0
    for way in ({"offline_mode": "requests"}, {"count_generated": True}):
        report = await run(replace(plan, **way), server)
        assert report.offline is not None and report.offline.output_tokens_per_s
        assert report.offline.total_tokens_per_s == pytest.approx(11 * report.offline.output_tokens_per_s, rel=0.01)


@pytest.mark.parametrize("takes_token_ids", [True, False])
async def test_a_filler_that_is_in_no_prompt_is_told(
    plan: ReplayPlan, server: OpenAIServer, takes_token_ids: bool, tokenizer_folder: Path
) -> None:
    server.takes_token_ids = takes_token_ids
    report = await run(replace(plan, prompts=[], filler="Friends Romans"), server)
    assert any("without --filler's text" in note for note in report.notes) == takes_token_ids
    if not takes_token_ids:
        assert {word for body in server.trace_bodies for word in body["prompt"].split()} == {"Friends", "Romans"}
    with_model = replace(plan, prompts=[], filler="Friends Romans", model_path=tokenizer_folder)
    assert not any("without --filler's text" in note for note in (await run(with_model, server)).notes)
    assert not any("--filler" in note for note in (await run(replace(plan, prompts=[]), server)).notes)


async def test_a_trace_that_is_shorter_than_the_window_is_told_of(server: OpenAIServer, trace_file: Path) -> None:
    told = ["the trace ends 0.38 s into the window of 0.5 s, which rates are over"]
    options = WorkloadOptions(online=trace_file)
    assert (await run(options.plan(0.5, None), server)).notes == told
    assert (await run(options.plan(0.4, None), server)).notes == []


async def test_no_busy_counter_no_harvest_but_a_note(plan: ReplayPlan, server: OpenAIServer) -> None:
    report = await run(replace(plan, baseline=True), server)
    assert report.harvest is None
    assert any("slackwater_executor_busy_seconds_total" in note for note in report.notes)


async def test_failures_are_counted_and_noted(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.fail_with = 500
    replay, _ = await replayed(replace(plan, prompts=[]), server)
    assert replay.online_failures() == ["20 online requests failed: 500: out of order"]
    report = replay.report(partial=False)
    assert report.online is not None
    assert (report.online.errors, report.online.completed, report.online.ttft_ms) == (20, 0, None)
    assert "replay: 20 online requests failed: 500: out of order" in report.notes


async def test_a_few_failures_stand_for_many(plan: ReplayPlan, server: OpenAIServer) -> None:
    refusals = itertools.cycle(["wait 5 ms", *"bcdef", "wait 7 ms"])
    server.refusal = lambda: next(refusals)
    server.fail_with = 429
    report = await run(replace(plan, prompts=[]), server)
    notes = [note for note in report.notes if "requests failed" in note]
    assert notes[0] == "replay: 5 online requests failed: 429: wait 5 ms"
    assert len(notes) == 6 and notes[-1] == "replay: 3 online requests failed: other errors"
    assert {note.partition(":")[2].split()[0] for note in notes[1:5]} == {"3"}


async def test_no_slo_is_kept_where_requests_fail_and_it_is_said(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.max_answered = 5
    slos = [parse_slo("ttft_p99<=60s"), parse_slo("tbt_mean<=60s")]
    report = await run(replace(plan, prompts=[], slos=slos), server)
    assert report.online is not None
    assert (report.online.completed, report.online.errors) == (5, 15)
    assert [slo.met for slo in report.slo] == [False, False]
    assert "15 of 20 online requests failed: for the SLOs they are infinitely late" in report.notes


async def test_lengths_are_cut_to_the_server_s_context(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.max_model_len = 20
    report = await run(replace(plan, prompts=[]), server)
    assert max(len(body["prompt"]) + body["max_tokens"] for body in server.trace_bodies) == 20
    assert any("cut to the context of 20 tokens" in note for note in report.notes)


@pytest.mark.parametrize("form", ["takes_token_ids", "has_completions"])
async def test_prompts_of_words_are_cut_to_what_fits_the_context(
    plan: ReplayPlan, server: OpenAIServer, form: str
) -> None:
    """Words have one to five tokens, and a prompt of as many words as the probes may be longer than they were."""
    setattr(server, form, False)
    server.count_text, server.keeps_to_context = letters_per_three, True
    requests = [replace(each, num_prompt_tokens=9000) for each in plan.requests]
    report = await run(ReplayPlan(requests, [], Scaling(duration_s=0.1)), server)
    assert report.online is not None and (report.online.completed, report.online.errors) == (20, 0)
    assert report.run.max_context == 4096
    assert "20 online requests were cut to what is sure to fit the context: 3481 tokens" in report.notes


async def test_unknown_model_and_missing_batches_are_named(plan: ReplayPlan, server: OpenAIServer) -> None:
    with pytest.raises(ServerError, match="does not serve model huge; it serves: tiny"):
        await run(replace(plan, model="huge"), server)
    server.has_batches = False
    with pytest.raises(ServerError, match="use --offline-mode requests"):
        await run(replace(plan, offline_mode="batch"), server)


async def test_the_table_shows_runs_side_by_side(plan: ReplayPlan, server: OpenAIServer) -> None:
    server.busy_per_s = 0.25
    report = await run(replace(plan, baseline=True, slos=[parse_slo("ttft_p99<=0.001us")]), server)
    console = Console(file=io.StringIO(), record=True, width=120)
    print_report(console, report)
    text = console.export_text()
    for words in ("TTFT ms", "online only", "ratio", "harvest", "offline total tokens/s", "ttft_p99<=0.001us", "NO"):
        assert words in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": [], "prompts": []}, "nothing to send"),
        ({"requests": [], "baseline": True}, "--baseline compares with an online-only run"),
        ({"slos": [parse_slo("tbt_mean<=1.05x")]}, "give --baseline too"),
        ({"requests": [], "slos": [parse_slo("tbt_mean<=5ms")]}, "give --online too"),
    ],
)
def test_impossible_plans_are_named(plan: ReplayPlan, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        replace(plan, **options)
