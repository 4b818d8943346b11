"""One large batch through the whole stack: ``python -m benchmarks.batch_scale``. Upload, validation, every request on
an executor with the simulated engine, output file; what each phase takes, and the most memory that each process has in
it.

The prompts are random words of the model's vocabulary, so that no two of them share more than the template; the engine
is scaled so that it is not what is waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tokenizers import Tokenizer

from benchmarks.figures import print_table
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.commands.server import ApiClient
from services.local.stack.nats_server import nats_binary
from services.local.stack.port import free_port
from shared.errors import ApiError

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
POLL_S = 0.2
SAMPLE_S = 0.05
READY_S = 120.0
MIB = 1024 * 1024
WORD_START = "\u0120"  # of a token that begins a word, in a byte-level vocabulary


@dataclass
class Watch:
    """The most memory of each process in each phase, and how long the phases took."""

    processes: dict[str, psutil.Process]
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)  # bytes, by phase and process
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Samples in a thread of its own."""
        ended = threading.Event()
        self.peaks[name] = dict.fromkeys(self.processes, 0)
        sampler = threading.Thread(target=self._sample, args=(self.peaks[name], ended))
        start_s, cpu_s = time.perf_counter(), self._cpu_s()
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()
            self.seconds[name] = time.perf_counter() - start_s
            self.cpu_s[name] = {process: used - cpu_s[process] for process, used in self._cpu_s().items()}

    def rows(self) -> list[list[str]]:
        """One per phase: seconds, then MiB and CPU seconds of each process."""
        return [
            [name, f"{self.seconds[name]:.1f}"]
            + [f"{self.peaks[name][each] / MIB:.0f} / {self.cpu_s[name][each]:.0f}" for each in self.processes]
            for name in self.seconds
        ]

    def _sample(self, peaks: dict[str, int], ended: threading.Event) -> None:
        while True:
            for name, process in self.processes.items():
                peaks[name] = max(peaks[name], process.memory_info().rss)
            if ended.wait(SAMPLE_S):
                return

    def _cpu_s(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self.processes.items()}
        return {name: each.user + each.system for name, each in times.items()}


@contextlib.contextmanager
def stack(
    store: Path, queue_options: list[str], time_scale: str = "0.0001", nats_port: int | None = None
) -> Iterator[tuple[str, Watch]]:
    """The gateway's URL, and its processes."""
    folder = str(model_folder())
    store.mkdir()
    nats_port, port = nats_port or free_port(), free_port()
    common = ("--nats", f"nats://127.0.0.1:{nats_port}", "--log-level", "warning", "--model-path", folder)
    engine = ("--engine", "sim", "--sim-time-scale", time_scale, "--kv-blocks", "32768")
    commands = {
        "nats-server": [
            nats_binary(),
            "-a",
            "127.0.0.1",
            "-p",
            str(nats_port),
            "-js",
            "-sd",
            str(store),
            "-l",
            str(store / "log"),
        ],
        "offline-queue": [*_service("offline_queue"), *common, "--preset", "sarathi++", *queue_options],
        "executor": [
            *(*_service("executor"), *common, *engine),
            *("--preset", "sarathi++", "--max-num-batched-tokens", "16384"),
        ],
        "gateway": [*_service("gateway"), *common, "--port", str(port)],
    }
    processes = {name: subprocess.Popen(command, stdout=subprocess.DEVNULL) for name, command in commands.items()}
    try:
        yield (
            f"http://127.0.0.1:{port}",
            Watch({name: psutil.Process(process.pid) for name, process in processes.items()}),
        )
    finally:
        for process in reversed(processes.values()):
            process.kill()
            process.wait()


def model_folder() -> Path:
    return prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: print(line, file=sys.stderr)).path


def _service(name: str) -> list[str]:
    return [sys.executable, "-m", f"services.{name}"]


def write_input(path: Path, num_lines: int, num_bytes: int, max_tokens: int) -> None:
    """So many lines, so many bytes together, as far as whole words allow."""
    rng = random.Random(1)
    vocabulary = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).get_vocab()
    words = sorted(token[1:] for token in vocabulary if token[0] == WORD_START and token[1:].isascii())
    with path.open("wb") as sink:
        for line in range(num_lines):
            body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": ""}], "max_tokens": max_tokens}
            envelope = {"custom_id": f"request-{line}", "method": "POST", "url": ENDPOINT, "body": body}
            room = num_bytes // num_lines - len(json.dumps(envelope)) - 1
            text = " ".join(rng.choices(words, k=room // 3))[: max(1, room)]
            body["messages"] = [{"role": "user", "content": text}]
            sink.write(json.dumps(envelope).encode() + b"\n")


def run(client: ApiClient, watch: Watch, source: Path, output: Path) -> dict[str, object]:
    """The batch at its end."""
    with watch.phase("before"):
        wait(lambda: is_ready(client), READY_S)
    with watch.phase("upload"):
        file_id = client.upload(source, "batch")["id"]
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    batch = client.post("/v1/batches", body)

    def status() -> str:
        nonlocal batch
        batch = client.get(f"/v1/batches/{batch['id']}")
        print(batch["status"], batch["request_counts"], file=sys.stderr)
        return str(batch["status"])

    with watch.phase("validation"):
        wait(lambda: status() != "validating")
    with watch.phase("run"):
        wait(lambda: status() not in ("validating", "in_progress"))
    with watch.phase("output file"):
        wait(lambda: status() in ENDED)
    with watch.phase("download"):
        if batch["output_file_id"]:
            client.download(batch["output_file_id"], output)
    return batch


def is_ready(client: ApiClient) -> bool:
    try:
        client.get("/ready")
    except ApiError:
        return False
    return True


def wait(condition: Callable[[], bool], timeout_s: float = 3600.0, period_s: float = POLL_S) -> None:
    """Polls: the API has no event for a batch's progress. Raises TimeoutError."""
    deadline_s = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"not after {timeout_s:.0f} s")
        time.sleep(period_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--mb", type=int, default=200, help="of the input file")
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("queue_options", nargs="*", help="after --: options of the offline-queue")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "input.jsonl", Path(folder) / "output.jsonl"
        write_input(source, arguments.lines, arguments.mb * 1000 * 1000, arguments.max_tokens)
        print(f"input: {source.stat().st_size} bytes", file=sys.stderr)
        with stack(Path(folder) / "nats", arguments.queue_options) as (url, watch), ApiClient(url) as client:
            batch = run(client, watch, source, output)
        print(json.dumps({name: batch[name] for name in ("status", "request_counts", "usage")}), file=sys.stderr)
        header = ["phase", "s", *(f"{name}: MiB / CPU s" for name in watch.processes)]
        print_table(header, watch.rows())


if __name__ == "__main__":
    main()
