"""A gateway, executors and their bus as real processes, for the gateway's tests."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx
import openai

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.machine import free_port
from tests.conftest import nats_server_binary, wait_for_port
from tests.programs import Program, no_more_files, stand_still

BatchEndpoint = Literal["/v1/completions", "/v1/chat/completions"]

MODEL = DEFAULT_MODEL
WAIT_S = 60.0
READY_S = 180.0  # a model is read, beside others


def model_folder() -> Path:
    return prepare(MODEL, default_cache_dir(), lambda line: None)


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = WAIT_S) -> None:
    """For state that only another process knows. ``what`` is said where it never comes; if it is to be asked, then."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)


class GatewayRig:
    """Use as a context manager: whatever a test does, nothing stays. ``model``: a prepared folder that all services
    have under the default model's name; None is that one's own."""

    def __init__(self, folder: Path, nats_url: str | None = None, model: Path | None = None) -> None:
        self._folder = folder
        self._model = model or model_folder()
        self._processes: dict[str, subprocess.Popen[bytes] | Program] = {}
        self._nats_port = free_port()
        self.nats_url = nats_url or f"nats://127.0.0.1:{self._nats_port}"
        if nats_url is None:
            self.start_nats()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def __enter__(self) -> GatewayRig:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.http.close()
        self.openai.close()
        for process in reversed(self._processes.values()):
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start_nats(self) -> None:
        """On the same port and store each time."""
        wait_for_port(self._nats_port, self._spawn("nats", nats_server_binary(), *self._nats_arguments()))

    def start_gateway(self, *options: str) -> None:
        """Returns when it answers."""
        self._start_service("gateway", "gateway", "--port", str(self.port), *options)
        wait_for_port(self.port, self._processes["gateway"], WAIT_S)

    def start_executor(self, executor_id: str = "executor-0", *options: str, name: str = "") -> None:
        """With the sim engine; returns at once. ``name``: of the process here, else its id."""
        own = ("--engine", "sim", "--executor-id", executor_id)
        self._start_service(name or executor_id, "executor", *own, *options)

    def start_own_executor(self, script: Path, *options: str) -> None:
        """A test's own program in the place of executor-0; returns at once."""
        self._spawn("executor-0", sys.executable, str(script), "--engine", "sim", *self._common(), *options)

    def start_offline_queue(self, *options: str, name: str = "offline-queue") -> None:
        """Returns at once."""
        self._start_service(name, "offline_queue", *options)

    def start_predictor(self) -> None:
        """Returns at once."""
        self._start("predictor", "predictor", "--nats", self.nats_url)

    def start_profiler(self, *options: str) -> None:
        """Returns at once; what it keeps lies in the rig's folder."""
        common = ("--nats", self.nats_url, "--cache-dir", str(self._folder))
        self._start("profiler", "profiler", *common, *options)

    def wait_ready(self) -> None:
        wait_until(lambda: self.http.get("/ready").status_code == 200, self.logs, READY_S)

    def stop(self, name: str, signum: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and wait for its end; its exit status."""
        self.signal(name, signum)
        return self.wait(name)

    def signal(self, name: str, signum: signal.Signals) -> None:
        self._processes[name].send_signal(signum)

    def pause(self, name: str) -> None:
        """Returns when the process stands still, until it gets SIGCONT."""
        stand_still(self._processes[name].pid)

    def wait(self, name: str) -> int:
        return self._processes[name].wait(WAIT_S)

    def resident_bytes(self, name: str) -> int:
        """Memory that the process has now."""
        pages = int(Path(f"/proc/{self._processes[name].pid}/statm").read_text().split()[1])
        return pages * 4096

    def limit_file_size(self, name: str, num_bytes: int) -> None:
        """Of each file that the process writes from here on; Linux only."""
        resource.prlimit(self._processes[name].pid, resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    def no_more_files(self, name: str) -> AbstractContextManager[None]:
        """The process can open none beside those that it has; Linux only."""
        return no_more_files(self._processes[name].pid)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self._folder.glob("*.log"))

    def log_events(self, name: str) -> list[dict[str, Any]]:
        """What the process has logged so far."""
        lines = (self._folder / f"{name}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of the name that carry the labels; 0 where there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.http.get("/metrics").text.splitlines() if line.split("{")[0].split()[0] == name]
        return sum(float(line.split()[-1]) for line in lines if all(pair in line for pair in wanted))

    def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions with these fields over a small request."""
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "seed": 1} | fields
        return self.http.post("/v1/completions", json=body)

    @contextmanager
    def completing(self, **fields: Any) -> Iterator[None]:
        """One request after the other, as ``complete``, each of which has to be answered."""
        is_over = threading.Event()

        def complete() -> None:
            while not is_over.is_set():
                assert self.complete(**fields).status_code == 200

        with ThreadPoolExecutor(1) as thread:
            completed = thread.submit(complete)
            try:
                yield
            finally:
                is_over.set()
            completed.result()

    def submit_batch(
        self,
        bodies: Iterable[dict[str, Any]],
        name: str = "line",
        endpoint: BatchEndpoint = "/v1/completions",
        client: openai.OpenAI | None = None,
    ) -> str:
        """Line-0 first; the batch's id. ``client``: whose it is, where it is not the rig's own."""
        client = client or self.openai
        lines = [
            {"custom_id": f"{name}-{number}", "method": "POST", "url": endpoint, "body": body}
            for number, body in enumerate(bodies)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
        made = client.batches.create(input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h")
        return made.id

    def _nats_arguments(self) -> Sequence[str]:
        return "-a", "127.0.0.1", "-p", str(self._nats_port), "-js", "-sd", str(self._folder / "nats")

    def _start_service(self, name: str, module: str, *options: str) -> None:
        self._start(name, module, *self._common(), *options)

    def _common(self) -> Sequence[str]:
        return "--nats", self.nats_url, "--model-path", str(self._model), "--model-name", MODEL

    def _start(self, name: str, module: str, *arguments: str) -> None:
        log = self._folder / f"{name}.log"
        self._processes[name] = Program(f"services.{module}", *arguments, stdout=log, stderr=log)

    def _spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = process = subprocess.Popen(command, stdout=log, stderr=log)
        return process
