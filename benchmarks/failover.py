"""How long a stream pauses when its executor goes: ``python -m benchmarks.failover``.

Two executors with the sim engine behind one gateway, as processes. Each round streams one completion, ends the executor
that serves it (SIGKILL; SIGTERM, at which it signs off; SIGSTOP, so that it only falls silent) and takes the longest
gap between two tokens. The executor is started again before the next round.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from benchmarks.figures import print_table, quantile
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.nats_server import nats_binary
from services.local.stack.port import free_port

EXECUTORS = ("executor-0", "executor-1")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
NUM_TOKENS = 600  # about 6 s
END_AFTER = 40  # tokens
READY_S = 60.0


class Processes:
    """The bus, a gateway and the executors."""

    def __init__(self, store: Path) -> None:
        self.nats = f"nats://127.0.0.1:{free_port()}"
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=READY_S)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._model = str(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None).path)
        nats_port = self.nats.rpartition(":")[2]
        self._spawn("nats", nats_binary(), "-a", "127.0.0.1", "-p", nats_port, "-js", "-sd", str(store))
        self._start("gateway", "gateway", "--port", str(self.http.base_url.port))

    def start_executor(self, executor_id: str) -> None:
        self._start(executor_id, "executor", "--engine", "sim", "--executor-id", executor_id)

    def end(self, name: str, signum: signal.Signals) -> None:
        self._running[name].send_signal(signum)

    def reap(self, name: str) -> None:
        """After ``end``."""
        self._running[name].kill()
        self._running[name].wait()

    def close(self) -> None:
        self.http.close()
        for process in reversed(self._running.values()):
            process.kill()
            process.wait()

    def alive(self) -> dict[str, float]:
        """Online requests that run at each executor that the gateway knows."""
        with contextlib.suppress(httpx.TransportError):
            lines = self.http.get("/metrics").text.splitlines()
            gauges = [line for line in lines if line.startswith("slackwater_executor_online_running{")]
            return {line.split('executor_id="')[1].split('"')[0]: float(line.split()[-1]) for line in gauges}
        return {}

    def _start(self, name: str, module: str, *options: str) -> None:
        common = ("--nats", self.nats, "--log-level", "error", "--model-path", self._model)
        self._spawn(name, sys.executable, "-m", f"services.{module}", *common, *options)

    def _spawn(self, name: str, *command: str) -> None:
        self._running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as store:
        made = Processes(Path(store))
        try:
            yield made
        finally:
            made.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    end_s = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the processes are not ready")
        time.sleep(0.05)


def pause_s(stack: Processes, signum: signal.Signals) -> float:
    """Of one stream."""
    wait_until(lambda: stack.alive() == dict.fromkeys(EXECUTORS, 0.0))
    body = {"prompt": [5] * 32, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "model": DEFAULT_MODEL}
    times: list[float] = []
    ended, num_tokens = "", 0
    with stack.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
                num_tokens += "error" not in json.loads(line[6:])
            if len(times) >= END_AFTER and not ended:
                ended = next((name for name, running in stack.alive().items() if running), "")
                if ended:
                    stack.end(ended, signum)
    assert ended and num_tokens == len(times), "the stream ended with an error, or too early"
    stack.reap(ended)
    stack.start_executor(ended)
    return max(after - before for before, after in itertools.pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="streams for each signal")
    rounds = parser.parse_args().rounds
    rows = []
    with processes() as stack:
        for executor_id in EXECUTORS:
            stack.start_executor(executor_id)
        for signum in SIGNALS:
            pauses = sorted(pause_s(stack, signum) for _ in range(rounds))
            rows.append([signum.name, *(f"{pause:.2f}" for pause in (quantile(pauses, 0.5), pauses[-1]))])
    print_table(["the executor gets", "pause p50 s", "max s"], rows)


if __name__ == "__main__":
    main()
