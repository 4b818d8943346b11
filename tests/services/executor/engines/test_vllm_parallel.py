"""vLLM's model shared by two worker processes, by layers or in each layer: the tokens of one, and what comes of one
that ends."""

import asyncio
import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from services.executor.engines.factory import load_engine
from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.environment import import_vllm
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ConfigError, EngineError, EngineLostError, ModelError
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.engine_driver import EngineDriver, Request
from tests.services.executor.engines.test_torch_models import save_model
from tests.services.executor.engines.test_vllm_plans import prompts_of
from tests.services.executor.test_pipeline_depth import Site, make_online
from tests.shared.replica.bidirectional_rig import disturbed, undisturbed
from tests.with_vllm import NEEDS_VLLM

pytestmark = [
    NEEDS_VLLM,
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


OWN_ATTENTION: dict[str, Any] = {"attention": "slackwater", "num_host_slots": 300, "block_size": 16}


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


@pytest.fixture(scope="module")
def shared_requests() -> list[GenerateRequest]:
    """Of both kinds, in families that begin alike for more than a block."""
    rng, made = random.Random(0), []
    sampling = SamplingParams(14, temperature=0.0, ignore_eos=True)
    for family in range(4):
        start = [rng.randrange(2, 300) for _ in range(24)]
        for kind, number in itertools.product(Kind, range(3)):
            prompt = start[: 24 - 4 * number] + [rng.randrange(2, 300) for _ in range(3 * number)]
            made.append(GenerateRequest(f"{family}-{kind.name}-{number}", kind, prompt, sampling, 0.0))
    return made


@pytest.fixture(scope="module")
def expected_of_torch(model: Path, shared_requests: list[GenerateRequest]) -> dict[str, list[int]]:
    engine = TorchEngine.load(model, "test", device="cpu", num_blocks=NUM_BLOCKS, num_threads=1)
    outputs = undisturbed(engine, shared_requests)
    engine.close()
    return outputs


@pytest.fixture(scope="module")
def bare_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, without the name of their decoder."""
    path = tmp_path_factory.mktemp("bare")
    shutil.copyfile(model / "config.json", path / "config.json")
    weights = load_file(model / "model.safetensors")
    bare = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(bare, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module", params=["pipeline", "tensor"])
def directed(request: pytest.FixtureRequest, model: Path, bare_model: Path) -> Iterator[Any]:
    """With our attention in each of two workers."""
    if request.param == "pipeline":
        engine = load(model, pipeline_parallel=2, **OWN_ATTENTION)
    else:
        engine = load(bare_model, tensor_parallel=2, **OWN_ATTENTION)
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


@pytest.mark.slow
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


@pytest.mark.slow
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
def test_our_attention_gives_the_tokens_of_the_torch_engine(
    directed: Any, shared_requests: list[GenerateRequest], expected_of_torch: dict[str, list[int]]
) -> None:
    """Also where both kinds share blocks, from both ends, and give way to each other."""
    assert undisturbed(directed, shared_requests) == expected_of_torch
    for seed in range(2):
        outputs, totals = disturbed(directed, shared_requests, num_blocks=12, seed=seed)
        assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots, totals.cached_tokens) > 0
        assert outputs == expected_of_torch
    assert directed.spec.device.endswith(("-own-attention-pp2", "-own-attention-tp2"))
    assert directed.spec.num_host_slots == 300 and directed.spec.swap_ms_per_slot > 0.0


@pytest.mark.slow
def test_slots_are_copied_in_each_worker(directed: Any) -> None:
    """A request from the right, whose second block leaves for the host, and its first for another block."""
    prompt = list(range(50, 82))
    to_host = SlotOperations(checkpoints=[(4 * 16 + n, n) for n in range(16)])
    back = SlotOperations(
        moves=[(3 * 16 + n, 9 * 16 + n) for n in range(16)], restores=[(n, 128 + n) for n in range(16)]
    )
    written_over = Sequence("other", list(range(100, 132)), 0, [4, 3], GREEDY, True)
    first = directed.execute(StepBatch(0, [Sequence("r", prompt, 0, [3, 4], GREEDY, True, True)])).sampled["r"]
    undisturbed_one = Sequence("r", [first], 32, [3, 4, 5], GREEDY, True, True)
    second = directed.execute(StepBatch(1, [undisturbed_one])).sampled["r"]
    for step, copies in ((2, to_host), (3, back)):
        directed.start_copies(copies)
        directed.execute(StepBatch(step, [Sequence("x", [7], 0, [20], GREEDY, True)], [copies]))
    directed.execute(StepBatch(4, [written_over]))
    moved = directed.execute(StepBatch(5, [Sequence("r", [first], 32, [9, 8, 10], GREEDY, True, True)]))
    assert moved.sampled["r"] == second


@pytest.mark.slow
def test_a_copy_that_fails_fails_its_step_and_no_other(directed: Any) -> None:
    sequence = Sequence("r", [5, 6, 7], 0, [0], GREEDY, True, True)
    with pytest.raises(EngineError, match="step 0 failed: EngineError: process 0 of the model did not copy slots"):
        directed.execute(StepBatch(0, [sequence], [SlotOperations(moves=[(10**6, 0)])]))
    assert "r" in directed.execute(StepBatch(1, [sequence], [SlotOperations(moves=[(40, 41)])])).sampled


@pytest.mark.slow
def test_a_worker_that_dies_while_it_copies_is_lost(directed: Any) -> None:
    """The last test of this engine."""
    worker, copies = workers_of(directed)[1], SlotOperations(moves=[(40, 41)])
    os.kill(worker.pid, signal.SIGSTOP)
    directed.start_copies(copies)
    os.kill(worker.pid, signal.SIGKILL)
    for step in range(2):
        with pytest.raises(EngineLostError, match="process 1 of the model is gone"):
            directed.execute(StepBatch(step, [Sequence("r", [5, 6, 7], 0, [0], GREEDY, True)], [copies]))


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["lru", "bidirectional"])
async def test_the_service_keeps_two_steps_in_flight_and_ends_with_a_worker(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    """The outputs are those of the torch engine, with our attention too; when a worker dies, the service ends, for
    others to go on with what it had, and the other worker ends too."""
    strategy = Strategy.of("bros", kv_sharing="bidirectional") if kv == "bidirectional" else Strategy()
    settings = ExecutorSettings(
        model_path=str(model_folder),
        engine="vllm",
        strategy=strategy,
        kv_blocks=64,
        max_num_seqs=4,
        pipeline_depth=2,
        threads=2,
    )
    requests, outputs = [make_online(n, 20, 6, temperature=0.0) for n in range(5)], []
    torch_settings = msgspec.structs.replace(settings, engine="torch", pipeline_depth=1)
    for engine in (load_engine(torch_settings), load_engine(settings)):
        site = Site(engine.spec.pipeline_depth, 3, requests, kv, engine=engine)
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
