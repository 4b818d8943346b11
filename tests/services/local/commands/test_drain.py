"""``slackwater drain`` and ``undrain`` on running executors, with online and offline requests under way."""

import asyncio
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.asked_stack import AskedStackOptions
from services.local.commands.drain import drained as drained_executor
from shared.protocol.executors import Heartbeat
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

OPTIONS = ("--preset", "sarathi++", "--max-num-seqs", "8", "--sim-time-scale", "0.5")  # about 5 ms a token
EXECUTORS = ("executor-0", "executor-1")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("drain")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        for executor_id in EXECUTORS:
            made.start_executor(executor_id, *OPTIONS)
        made.start_gateway()
        yield made


@pytest.fixture(autouse=True)
def both_serve(rig: GatewayRig) -> None:
    """Whatever a test before has left."""
    wait_until(lambda: [slackwater(rig, "undrain", each)[0] for each in EXECUTORS] == [0, 0], rig.logs)
    wait_until(lambda: rig.http.get("/ready").status_code == 200, rig.logs)


def slackwater(rig: GatewayRig, *args: str) -> tuple[int, str]:
    """A command against the rig's bus: exit status and output."""
    done = CliRunner().invoke(app, [*args, "--nats", rig.nats_url])
    return done.exit_code, done.output


def of_each(rig: GatewayRig, name: str) -> list[int]:
    """What the executors' last heartbeats say."""
    return [int(rig.metric(f"slackwater_executor_{name}", executor_id=each)) for each in EXECUTORS]


def stream(rig: GatewayRig, max_tokens: int) -> Iterator[dict[str, Any]]:
    """The choices of a streamed completion, as they come; any error fails."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": max_tokens, "seed": 3, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{rig.url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])["choices"][0]


def test_streams_end_where_they_run_and_new_requests_go_elsewhere(rig: GatewayRig) -> None:
    running = stream(rig, 600)
    next(running)
    wait_until(lambda: sum(of_each(rig, "online_running")) == 1, rig.logs)
    drained = of_each(rig, "online_running").index(1)
    told: asyncio.Queue[Heartbeat] = asyncio.Queue()
    with ThreadPoolExecutor(1) as pool:
        command = drained_executor(AskedStackOptions(nats=rig.nats_url), EXECUTORS[drained], True, told.put_nowait)
        draining = pool.submit(asyncio.run, command)
        wait_until(lambda: not told.empty(), rig.logs)
        assert (told.get_nowait().online_running, draining.done()) == (1, False)
        assert [rig.complete().status_code for _ in range(3)] == [200] * 3
        *_, last = running
        assert (last["finish_reason"], draining.result(30).is_drained) == ("length", True)
    expected = [3, 3]
    expected[drained] = 1
    wait_until(lambda: of_each(rig, "finished_online_total") == expected, rig.logs)
    shown = slackwater(rig, "status")[1]
    assert (f"{EXECUTORS[drained]}  sim on" in shown, shown.count("(drained)")) == (True, 1)


def test_offline_requests_end_where_they_run_and_the_rest_of_the_batch_elsewhere(rig: GatewayRig) -> None:
    num_lines = 130
    body = {"model": MODEL, "max_tokens": 60, "ignore_eos": True}
    batch_id = rig.submit_batch(body | {"prompt": [number] * 100} for number in range(num_lines))
    wait_until(lambda: all(of_each(rig, "finished_offline_total")), rig.logs)
    assert slackwater(rig, "drain", "executor-0")[0] == 0
    assert rig.openai.batches.retrieve(batch_id).status == "in_progress"
    at_drain = of_each(rig, "finished_offline_total")[0]
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
    output = rig.openai.files.content(rig.openai.batches.retrieve(batch_id).output_file_id or "").text
    ids = sorted(json.loads(line)["custom_id"] for line in output.splitlines())
    assert ids == sorted(f"line-{number}" for number in range(num_lines))
    wait_until(lambda: sum(of_each(rig, "finished_offline_total")) == num_lines, rig.logs)
    assert of_each(rig, "finished_offline_total")[0] == at_drain


def test_without_an_executor_that_takes_requests_clients_are_told_so(rig: GatewayRig) -> None:
    for executor_id in EXECUTORS:
        status, text = slackwater(rig, "drain", executor_id, "--no-wait", "--json")
        assert (status, json.loads(text)["draining"]) == (0, True)
    wait_until(lambda: rig.http.get("/ready").status_code == 503, rig.logs)
    assert "drains (executor-0, executor-1): slackwater undrain" in rig.http.get("/ready").json()["reason"]
    refused = rig.complete()
    assert (refused.status_code, "drains (executor-0, executor-1)" in refused.text) == (503, True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rig.complete)
        assert slackwater(rig, "undrain", "executor-1") == (0, "executor-1 takes requests\n")
        assert waiting.result(30).status_code == 200


def test_an_executor_that_was_started_anew_takes_requests(rig: GatewayRig) -> None:
    assert slackwater(rig, "drain", "executor-0")[1].endswith("executor-0 is drained\n")
    rig.stop("executor-0", signal.SIGKILL)
    rig.start_executor("executor-0", *OPTIONS)
    wait_until(lambda: slackwater(rig, "status")[1].count(" on ") == 2, rig.logs)
    assert "drain" not in slackwater(rig, "status")[1]


def test_an_unknown_executor_is_named_beside_the_known(rig: GatewayRig) -> None:
    status, text = slackwater(rig, "drain", "executor-7")
    assert (status, "registered: executor-0, executor-1" in text) == (1, True)
