"""Several executors behind one gateway and one offline-queue: who gets what, and what a killed one leaves to others."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.gateway.gateway_rig import MODEL, READY_S, GatewayRig, wait_until

EXECUTORS = ("executor-0", "executor-1")
LINES = 168


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    """Two simulated executors; the second runs a quarter of the requests that the first one does at a time."""
    with GatewayRig(tmp_path_factory.mktemp("many")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        for executor_id, max_num_seqs in zip(EXECUTORS, ("32", "8"), strict=True):
            options = ("--preset", "sarathi++", "--sim-time-scale", "0.5", "--max-num-seqs", max_num_seqs)
            made.start_executor(executor_id, *options)
        made.start_gateway()
        wait_until(lambda: len(alive(made)) == 2, made.logs)
        yield made


def alive(rig: GatewayRig) -> list[str]:
    """The executors that the gateway knows."""
    lines = [line for line in rig.http.get("/metrics").text.splitlines() if "executor_online_running{" in line]
    return sorted(line.split('executor_id="')[1].split('"')[0] for line in lines)


def body_of(number: int) -> dict[str, Any]:
    """Of twelve groups that share 80 tokens each."""
    prompt = [100 + number % 12] * 80 + [number] * 20
    return {"model": MODEL, "prompt": prompt, "max_tokens": 40, "seed": number, "ignore_eos": True}


def submit(rig: GatewayRig) -> str:
    return rig.submit_batch(map(body_of, range(LINES)))


def num_completed(rig: GatewayRig, batch_id: str) -> int:
    counts = rig.openai.batches.retrieve(batch_id).request_counts
    return counts.completed if counts else 0


def outputs(rig: GatewayRig, batch_id: str) -> dict[str, str]:
    """Of a batch that completes without an error; each id has one line."""
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs, timeout_s=60)
    batch = rig.openai.batches.retrieve(batch_id)
    assert batch.error_file_id is None and batch.output_file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(batch.output_file_id).text.splitlines()]
    assert Counter(line["custom_id"] for line in lines).most_common(1)[0][1] == 1
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}


def alone(rig: GatewayRig) -> dict[str, str]:
    """What some of the lines say as online requests."""
    with ThreadPoolExecutor(8) as pool:
        numbers = range(0, LINES, 24)
        answers = pool.map(lambda number: rig.http.post("/v1/completions", json=body_of(number)).json(), numbers)
        return {f"line-{n}": answer["choices"][0]["text"] for n, answer in zip(numbers, answers, strict=True)}


def test_each_executor_gets_as_much_of_a_batch_as_it_has_room_for(rig: GatewayRig) -> None:
    texts = outputs(rig, submit(rig))
    assert len(texts) == LINES
    wait_until(lambda: sum(finished(rig)) == LINES, rig.logs)
    assert finished(rig)[0] > finished(rig)[1] > 0
    expected = alone(rig)
    assert {line: texts[line] for line in expected} == expected


def finished(rig: GatewayRig) -> list[int]:
    """Offline requests that each executor has ended, as it says once a second."""
    return [int(rig.metric("slackwater_executor_finished_offline_total", executor_id=each)) for each in EXECUTORS]


def test_a_killed_executors_part_of_a_batch_moves_to_the_other(rig: GatewayRig) -> None:
    expected = alone(rig)
    batch_id = submit(rig)
    wait_until(lambda: num_completed(rig, batch_id) >= LINES // 10, rig.logs)
    rig.stop("executor-0", signal.SIGKILL)
    assert num_completed(rig, batch_id) < LINES
    texts = outputs(rig, batch_id)
    assert len(texts) == LINES
    assert {line: texts[line] for line in expected} == expected
    wait_until(lambda: alive(rig) == ["executor-1"], rig.logs)


@pytest.mark.slow
def test_a_real_engines_greedy_stream_goes_on_word_for_word(tmp_path: Path, shallow_model: Path) -> None:
    with GatewayRig(tmp_path, model=shallow_model) as rig:
        rig.start_gateway()
        for executor_id in EXECUTORS:
            rig.start_executor(executor_id, "--engine", "torch", "--threads", "1", "--kv-blocks", "64")
        wait_until(lambda: len(alive(rig)) == 2, rig.logs, READY_S)
        body = {"model": MODEL, "prompt": "Once upon a time there was a lighthouse", "max_tokens": 100}
        body |= {"temperature": 0.0, "ignore_eos": True, "seed": 1}
        pieces = []
        with httpx.stream("POST", f"{rig.url}/v1/completions", json=body | {"stream": True}, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["text"])
                    if len(pieces) == 12:
                        rig.stop("executor-0", signal.SIGKILL)
        assert rig.metric("slackwater_resumed_requests_total") == 1
        assert "".join(pieces) == rig.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
