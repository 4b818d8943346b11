"""How long a stream pauses when its executor goes: ``python -m benchmarks.bus.failover``.

Two executors with the sim engine behind one gateway, as processes. Each round streams one completion, ends the executor
that serves it (SIGKILL; SIGTERM, at which it signs off; SIGSTOP, so that it only falls silent) and takes the longest
gap between two tokens. The executor is started again before the next round.
"""

import contextlib
import itertools
import json
import signal
import time
from typing import Annotated

import httpx
import typer

from benchmarks.harness.command import DEFAULT_MODEL, Results, benchmark, quantiles
from benchmarks.harness.stack import Stack, stack, wait_until

EXECUTORS = ("executor-0", "executor-1")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
NUM_TOKENS, END_AFTER = 600, 40  # about 6 s
TIMEOUT_S = 60.0


def running_at(url: str) -> dict[str, float]:
    """Online requests that run at each executor that the gateway knows."""
    with contextlib.suppress(httpx.TransportError):
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        gauges = [line for line in lines if line.startswith("slackwater_executor_online_running{")]
        return {line.split('executor_id="')[1].split('"')[0]: float(line.split()[-1]) for line in gauges}
    return {}


def start_executor(running: Stack, executor_id: str) -> None:
    running.start("executor", "--engine", "sim", "--executor-id", executor_id, name=executor_id)


def pause_s(running: Stack, signum: signal.Signals) -> float:
    """Of one stream."""
    wait_until(lambda: running_at(running.url) == dict.fromkeys(EXECUTORS, 0.0))
    body = {"prompt": [5] * 32, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "model": DEFAULT_MODEL}
    times: list[float] = []
    ended, num_tokens = "", 0
    with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
                num_tokens += "error" not in json.loads(line[6:])
            if len(times) >= END_AFTER and not ended:
                ended = next((name for name, count in running_at(running.url).items() if count), "")
                if ended:
                    running.processes[ended].send_signal(signum)
    assert ended and num_tokens == len(times), "the stream ended with an error, or too early"
    running.reap(ended)
    start_executor(running, ended)
    return max(after - before for before, after in itertools.pairwise(times))


@benchmark
def main(rounds: Annotated[int, typer.Option(help="Streams for each signal.")] = 8) -> Results:
    with stack() as running:
        running.start("gateway")
        for executor_id in EXECUTORS:
            start_executor(running, executor_id)
        for signum in SIGNALS:
            pauses = sorted(pause_s(running, signum) for _ in range(rounds))
            yield {"the executor gets": signum.name, **quantiles(pauses, {"pause p50 s": 0.5, "max s": 1.0})}
