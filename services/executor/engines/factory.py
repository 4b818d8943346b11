"""Engines by name."""

from __future__ import annotations

from pathlib import Path

from services.executor.engine import Engine, EngineSpec
from services.executor.engines.sim import SimEngine
from services.executor.settings import ENGINES, ExecutorSettings
from shared.errors import ConfigError
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks
from shared.latency.swap import SwapModel
from shared.model_folder import ModelFacts
from shared.scheduling.presets import preset_named


def load_engine(settings: ExecutorSettings) -> Engine:
    """Load what ``settings.engine`` names; takes seconds. Raises ConfigError and ModelError."""
    if settings.engine == "torch":
        if settings.pipeline_depth != 1:
            raise ConfigError(
                "the torch engine has one pipeline stage: leave pipeline_depth at 1, or set engine to sim"
            )
        from services.executor.engines.torch_engine import TorchEngine

        return TorchEngine.load(
            Path(settings.model_path),
            settings.model_name,
            device=settings.device,
            dtype=settings.dtype,
            block_size=settings.block_size,
            num_blocks=settings.kv_blocks or None,
            num_threads=settings.threads or None,
            max_model_len=settings.max_model_len or None,
            num_host_slots=_host_slots(settings),
        )
    if settings.engine == "sim":
        return _load_sim(settings)
    raise ConfigError(f"unknown engine {settings.engine!r}; known: {', '.join(ENGINES)}")


def _load_sim(settings: ExecutorSettings) -> Engine:
    """The tokenizer's vocabulary and the context are those of the prepared model; time and memory are simulated."""
    facts = ModelFacts.read(Path(settings.model_path))
    tensor_parallel = settings.sim_tensor_parallel
    try:
        architecture, device = architecture_named(settings.sim_model), device_named(settings.sim_device)
        latency = RooflineLatencyModel.of(architecture, device, tensor_parallel)
        num_blocks = settings.kv_blocks or num_kv_blocks(architecture, device, tensor_parallel, settings.block_size)
    except ValueError as error:
        raise ConfigError(f"sim engine: {error}") from error
    host_slots = _host_slots(settings)
    swap = SwapModel.of(architecture, device, tensor_parallel)
    stages = f"-pp{settings.pipeline_depth}" if settings.pipeline_depth > 1 else ""
    spec = EngineSpec(
        model=settings.model_name,
        engine="sim",
        device=f"{tensor_parallel}x{device.name}-{architecture.name}-x{settings.sim_time_scale:g}{stages}",
        dtype="float16",
        max_model_len=settings.max_model_len or facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        eos_token_ids=facts.eos_token_ids,
        pipeline_depth=settings.pipeline_depth,
        num_host_slots=num_blocks * settings.block_size if host_slots is None else host_slots,
        swap_ms_per_slot=swap.ms_per_slot * settings.sim_time_scale,
    )
    return SimEngine(spec, latency, settings.sim_mean_output_tokens, settings.sim_time_scale, swap)


def _host_slots(settings: ExecutorSettings) -> int | None:
    """None leaves it to the engine, which knows the memory."""
    try:
        kv_policy = preset_named(settings.preset).kv_policy_named(settings.kv_policy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return settings.host_kv_slots or None if kv_policy.shares_blocks else 0
