"""Engines by name."""

from __future__ import annotations

from pathlib import Path

from services.executor.engine import Engine, EngineSpec
from services.executor.engines import sim
from services.executor.settings import ENGINES, ExecutorSettings
from shared.errors import ConfigError
from shared.model_folder import ModelFacts

SIM_MEMORY_BYTES, SIM_MEMORY_SHARE = 40e9, 0.9  # an A100-40G, as far as serving systems fill it


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
        )
    if settings.engine == "sim":
        return _load_sim(settings)
    raise ConfigError(f"unknown engine {settings.engine!r}; known: {', '.join(ENGINES)}")


def _load_sim(settings: ExecutorSettings) -> Engine:
    """The tokenizer's vocabulary and the context are those of the prepared model; time and memory are simulated."""
    facts = ModelFacts.read(Path(settings.model_path))
    block_bytes = 2 * sim.LAYERS * sim.HIDDEN * sim.VALUE_BYTES * settings.block_size
    kv_bytes = SIM_MEMORY_BYTES * SIM_MEMORY_SHARE - sim.PARAMETERS * sim.VALUE_BYTES
    stages = f"-pp{settings.pipeline_depth}" if settings.pipeline_depth > 1 else ""
    spec = EngineSpec(
        model=settings.model_name,
        engine="sim",
        device=f"a100-40g-llama2-7b-x{settings.sim_time_scale:g}{stages}",
        dtype="float16",
        max_model_len=settings.max_model_len or facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=settings.block_size,
        num_blocks=settings.kv_blocks or int(kv_bytes / block_bytes),
        eos_token_ids=facts.eos_token_ids,
        pipeline_depth=settings.pipeline_depth,
    )
    return sim.SimEngine(spec, sim.llama2_7b_on_a100(), settings.sim_mean_output_tokens, settings.sim_time_scale)
