"""The vLLM engine: vLLM's model, kernels and KV tensors in this process, our plan in the place of its scheduler."""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor

from services.executor.engines.torch.base import EngineOnTorch
from services.executor.engines.torch.device import device_name
from services.executor.engines.torch.host_pool import HostSlots
from services.executor.engines.torch.interruption import Interruption
from services.executor.engines.vllm.adapters import ADAPTERS_KEY, load_adapters
from services.executor.engines.vllm.attention_step import bind_attention
from services.executor.engines.vllm.core import VllmOptions, make_core, shut_down_on_error
from services.executor.engines.vllm.host_slots import host_slots_of
from services.executor.engines.vllm.kv_memory import kv_regions_of, kv_shards_of
from services.executor.engines.vllm.scheduler import PlannedScheduler
from services.executor.engines.vllm.workers import check_in_layers, prepare_worker
from shared.errors import EngineLostError
from shared.protocol.executors import EngineSpec
from shared.replica.engine import KVRegions, KVShards, SampledTokens, Sequence
from shared.text.model_folder import ModelFacts, read_architecture

logger = logging.getLogger(__name__)


class VllmEngine(EngineOnTorch):
    """Runs as many steps at a time as it has stages. A step raises EngineLostError where a worker has ended."""

    def __init__(
        self,
        spec: EngineSpec,
        core: EngineCore,
        host: HostSlots | None,
        kv: KVRegions | KVShards | str,
        num_threads: int,
        interruption: Interruption,
    ) -> None:
        device = torch.device(core.vllm_config.device_config.device_type)
        super().__init__(spec, device, host, num_threads, interruption)
        self._core = core
        self._kv = kv
        self._steps = StepsInFlight(core.model_executor, core.scheduler)

    @classmethod
    def load(cls, path: Path, name: str, options: VllmOptions) -> VllmEngine:
        """Load the model folder ``path`` under the name that clients use; takes seconds. ``import_vllm`` comes before.
        Raises ModelError for a model that cannot be run, ConfigError for settings that cannot be met."""
        core = make_core(path, ModelFacts.read(path), options)
        with shut_down_on_error(core, path):
            core.model_executor.collective_rpc(prepare_worker, args=(options.num_workers > 1, path))
            load_adapters(core.model_executor, core.vllm_config.additional_config[ADAPTERS_KEY])
            interruption = Interruption(torch.device(core.vllm_config.device_config.device_type))
            if options.num_workers == 1:
                core.model_executor.collective_rpc(check_in_layers, args=(interruption.check,))
            host = None
            if options.has_directions:
                core.model_executor.collective_rpc(bind_attention)
                host = host_slots_of(core.model_executor, options.num_host_slots, options.num_workers)
            spec = _spec_of(core, host, path, name, options)
            kv = (kv_regions_of if options.num_workers == 1 else kv_shards_of)(core.model_executor, spec)
        logger.info("model loaded", extra={"model": name, "device": spec.device, "num_blocks": spec.num_blocks})
        return cls(spec, core, host, kv, options.num_threads or cpu_count(), interruption)

    def kv_regions(self) -> KVRegions | KVShards | str:
        """See ``Engine.kv_regions``."""
        return self._kv

    def close(self) -> None:
        super().close()
        if not isinstance(self._kv, KVRegions | str):
            self._kv.close()
        self._core.shutdown()
        del self._core, self._steps

    def _run(self, sequences: list[Sequence]) -> SampledTokens:
        return self._steps.run(sequences)


def _spec_of(core: EngineCore, host: HostSlots | None, path: Path, name: str, options: VllmOptions) -> EngineSpec:
    """As ``VllmEngine.load``."""
    config, facts = core.vllm_config, ModelFacts.read(path)
    device = device_name(torch.device(config.device_config.device_type), options.num_threads or cpu_count())
    return EngineSpec(
        model=name,
        engine="vllm",
        device=device + options.variant,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        max_model_len=min(config.model_config.max_model_len, core.scheduler.num_blocks * options.block_size),
        vocab_size=facts.vocab_size,
        block_size=options.block_size,
        num_blocks=core.scheduler.num_blocks,
        eos_token_ids=facts.eos_token_ids,
        num_host_slots=host.num_slots if host is not None else 0,
        swap_ms_per_slot=host.ms_per_slot if host is not None else 0.0,
        pipeline_depth=options.pipeline_parallel,
        is_interruptible=options.num_workers == 1,
        takes_steps_ahead=options.pipeline_parallel == 1 and config.device_config.device_type == "cuda",
        architecture=read_architecture(path, name, config.model_config.dtype.itemsize),
        tensor_parallel=options.tensor_parallel,
        adapters=tuple(each.name for each in options.adapters),
    )


class StepsInFlight:
    """Launches steps in the order of the calls, in which workers answer too; each caller gets what came of its own."""

    def __init__(self, workers: Executor, scheduler: PlannedScheduler) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._telling = threading.Lock()
        self._last_ended = threading.Event()  # of the step that was launched last
        self._last_ended.set()

    def run(self, sequences: list[Sequence]) -> SampledTokens:
        """What the step sampled. Raises EngineLostError where no step can follow, else what the workers raised."""
        with self._telling:
            before, ended = self._last_ended, threading.Event()
            output = self._scheduler.tell(sequences)
            with self._loss_named():
                executed = self._workers.execute_model(output, non_block=True)
                sampled = self._workers.sample_tokens(None, non_block=True)
            self._last_ended = ended
        before.wait()  # answers carry no step: each thread reads when it is its turn
        try:
            with self._loss_named():
                executed.result()
                answer = sampled.result()
        finally:
            ended.set()
        with self._telling:
            return self._scheduler.settle(sequences, answer)

    @contextmanager
    def _loss_named(self) -> Iterator[None]:
        """A worker that does not answer in time is lost too: its answer would be taken for that of a later step."""
        try:
            yield
        except Exception as error:
            if getattr(self._workers, "is_failed", False) or isinstance(error, TimeoutError):
                raise EngineLostError(f"a worker of vLLM is gone: {type(error).__name__}: {error}") from error
            raise
