"""Engines by name."""

import logging
from functools import partial
from pathlib import Path

from services.executor.adapters import require_adapters
from services.executor.engines.sim import SimEngine
from services.executor.engines.torch.threads import apart
from services.executor.settings import DEFAULT_BLOCK_SIZE, OWN_ATTENTION, ExecutorSettings
from shared.errors import ConfigError
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks, swap_ms_per_slot
from shared.process.cores import usable_cores
from shared.protocol.executors import EngineSpec
from shared.replica.engine import Engine
from shared.scheduling.step_sizes import LARGEST
from shared.settings.lora_modules import adapter_names
from shared.text.model_folder import ModelFacts

logger = logging.getLogger(__name__)

DEFAULT_VLLM_BLOCK_SIZE = 32  # what its CPU kernels take at least


def load_engine(settings: ExecutorSettings) -> Engine:
    """Load what ``settings.engine`` names; takes seconds. Raises ConfigError and ModelError."""
    if settings.engine == "torch":
        if settings.pipeline_depth != 1 or settings.tensor_parallel != 1:
            raise ConfigError(
                "the torch engine does not share a model: leave pipeline_depth and tensor_parallel at 1, or set engine "
                "to vllm or sim"
            )
        from services.executor.engines.torch.engine import TorchEngine

        records, sizes = settings.cuda_graphs == "auto", settings.given_or(LARGEST)
        load = partial(
            TorchEngine.load,
            Path(settings.model_path),
            settings.model_name,
            device=settings.device,
            dtype=settings.dtype,
            block_size=settings.block_size or DEFAULT_BLOCK_SIZE,
            num_blocks=settings.kv_blocks or None,
            num_threads=_threads(settings),
            max_model_len=settings.max_model_len or None,
            num_host_slots=_host_slots(settings),
            max_graph_decodes=min(settings.cuda_graph_decodes, sizes.max_num_seqs) if records else 0,
            max_graph_tokens=settings.cuda_graph_tokens if records else 0,
            fused_attention=settings.fused_attention,
        )
        return apart(load)
    return _load_vllm(settings) if settings.engine == "vllm" else load_sim(settings)


def _threads(settings: ExecutorSettings) -> int | None:
    """As many as there are cores at most: more of them only wait for each other. None leaves it to the engine."""
    if settings.threads > (num_cores := usable_cores()):
        logger.warning("there are fewer cores than threads", extra={"threads": settings.threads, "cores": num_cores})
        return num_cores
    return settings.threads or None


def _load_vllm(settings: ExecutorSettings) -> Engine:
    """vLLM is imported late, and only here: it takes seconds, and reads its environment when it is."""
    from services.executor.engines.vllm.environment import import_vllm, not_as_tested

    attention = _vllm_attention(settings)
    num_threads = _threads(settings)
    version = import_vllm(num_threads)
    try:
        from services.executor.engines.vllm.core import VllmOptions
        from services.executor.engines.vllm.engine import VllmEngine
        from services.executor.engines.vllm.requirements import check_vllm
    except (AttributeError, ImportError) as error:
        raise ConfigError(not_as_tested(version, str(error))) from error
    check_vllm(version)
    options = VllmOptions(
        num_threads=num_threads,
        device=settings.device,
        dtype=settings.dtype,
        block_size=settings.block_size or DEFAULT_VLLM_BLOCK_SIZE,
        num_blocks=settings.kv_blocks or None,
        max_model_len=settings.max_model_len or None,
        max_num_batched_tokens=settings.max_num_batched_tokens or None,
        max_num_seqs=settings.max_num_seqs or None,
        attention=attention,
        num_host_slots=_host_slots(settings),
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_depth,
        adapters=tuple(require_adapters(settings.lora_modules, Path(settings.model_path))),
    )
    return apart(partial(VllmEngine.load, Path(settings.model_path), settings.model_name, options))


def _vllm_attention(settings: ExecutorSettings) -> str:
    if not settings.strategy.sharing.pauses:
        return OWN_ATTENTION if settings.vllm_attention == OWN_ATTENTION else "vllm"
    if settings.vllm_attention == "vllm":
        raise ConfigError(
            "vLLM's attention does not read blocks that both kinds share: leave vllm_attention at auto, or set "
            "kv_sharing to recompute"
        )
    return OWN_ATTENTION


def load_sim(settings: ExecutorSettings, engine_type: type[SimEngine] = SimEngine) -> SimEngine:
    """The tokenizer's vocabulary and the context are those of the prepared model; time and memory are simulated."""
    model_path, tensor_parallel = Path(settings.model_path), settings.tensor_parallel
    facts, block_size = ModelFacts.read(model_path), settings.block_size or DEFAULT_BLOCK_SIZE
    num_stages = settings.pipeline_depth
    try:
        architecture, device = architecture_named(settings.sim_model), device_named(settings.sim_device)
        latency = RooflineLatencyModel.of(architecture, device, tensor_parallel)
        num_blocks = settings.kv_blocks or num_kv_blocks(architecture, device, tensor_parallel, block_size, num_stages)
        swap_ms = swap_ms_per_slot(architecture, device, tensor_parallel, num_stages)
    except ValueError as error:
        raise ConfigError(f"sim engine: {error}") from error
    host_slots = _host_slots(settings)
    stages = f"-pp{num_stages}" if num_stages > 1 else ""
    spec = EngineSpec(
        model=settings.model_name,
        engine="sim",
        device=f"{tensor_parallel}x{device.name}-{architecture.name}-x{settings.sim_time_scale:g}{stages}",
        dtype="float16",
        max_model_len=settings.max_model_len or facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=block_size,
        num_blocks=num_blocks,
        eos_token_ids=facts.eos_token_ids,
        pipeline_depth=num_stages,
        num_host_slots=num_blocks * block_size if host_slots is None else host_slots,
        swap_ms_per_slot=swap_ms * settings.sim_time_scale,
        is_interruptible=num_stages == 1,
        takes_steps_ahead=num_stages == 1,
        architecture=architecture,
        tensor_parallel=tensor_parallel,
        adapters=adapter_names(settings.lora_modules),
    )
    return engine_type(spec, latency, settings.sim_mean_output_tokens, settings.sim_time_scale, model_path)


def _host_slots(settings: ExecutorSettings) -> int | None:
    """None leaves it to the engine, which knows the memory."""
    return settings.host_kv_slots or None if settings.strategy.sharing.pauses else 0
