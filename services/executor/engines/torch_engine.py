"""The torch engine: a transformers model on our paged KV cache and attention, on CPU or CUDA.

A step is one flattened forward of all scheduled tokens, prefill chunks and decodes alike.
"""

from __future__ import annotations

from services.executor.engines.torch_threads import cpu_count

# isort: split

import contextlib
import inspect
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.cpu.attention import GatherBuffer
from kernels.metadata import AttentionMetadata
from kernels.slot_copy import KVLayers
from services.executor.engine import EngineSpec, Sequence, StepBatch, StepResult
from services.executor.engines.torch_attention import ATTENTION_NAME, PagedStep, ShapeProbe
from services.executor.engines.torch_device import (
    choose_device,
    choose_dtype,
    device_name,
    host_memory_bytes,
    kv_memory_bytes,
)
from services.executor.engines.torch_host_pool import HostPool
from services.executor.engines.torch_linear import pack_linears
from services.executor.engines.torch_sampler import SampleRow, sample
from services.executor.engines.torch_warm_up import warm_up_batches
from shared.errors import ConfigError, EngineError, ModelError
from shared.model_folder import ModelFacts
from shared.scheduling.slot_transfers import SlotOperations

logger = logging.getLogger(__name__)

PROBE_TOKENS = 5

KVCaches = dict[torch.nn.Module, torch.Tensor]
KVShapes = dict[torch.nn.Module, tuple[int, int, int]]  # of each attention layer: num_kv_heads, k_dim, v_dim


class TorchEngine:
    """A loaded model with its KV blocks; see ``services.executor.engine.Engine``."""

    def __init__(
        self, spec: EngineSpec, model: torch.nn.Module, kv_caches: KVCaches, host: HostPool | None, num_threads: int
    ) -> None:
        self.spec = spec
        self._host = host
        self._model = model
        self._kv_caches = kv_caches
        self._buffer = GatherBuffer()
        self._num_threads = num_threads
        self._thread_id: int | None = None
        self._device = next(iter(kv_caches.values())).device

    @classmethod
    def load(
        cls,
        path: Path,
        name: str,
        device: str = "auto",
        dtype: str = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        num_threads: int | None = None,
        max_model_len: int | None = None,
        num_host_slots: int | None = 0,
    ) -> TorchEngine:
        """Load the model folder ``path`` under the name that clients use; takes seconds, on a GPU for the first time
        more, until every kernel is compiled.

        ``num_blocks`` None sizes the KV cache from memory, ``num_threads`` None takes every core, ``max_model_len``
        None takes the model's own context, or what the KV blocks hold if that is less, ``num_host_slots`` None as
        many slots of host memory as the blocks have, or what memory allows. Raises ModelError for a model that cannot
        be run, ConfigError for settings that cannot be met.
        """
        facts = ModelFacts.read(path)
        threads = num_threads or cpu_count()
        torch.set_num_threads(threads)
        chosen = choose_device(device)
        with torch.inference_mode():
            model, model_dtype, kv_shapes = _load_model(path, chosen, dtype)
            kv_caches = _allocate(kv_shapes, block_size, num_blocks, chosen, model_dtype)
            host = _host_pool(kv_caches, num_host_slots)
        blocks = next(iter(kv_caches.values())).shape[0]
        spec = EngineSpec(
            model=name,
            engine="torch",
            device=device_name(chosen, threads),
            dtype=str(model_dtype).removeprefix("torch."),
            max_model_len=_context(max_model_len, facts.max_model_len, blocks * block_size),
            vocab_size=facts.vocab_size,
            block_size=block_size,
            num_blocks=blocks,
            eos_token_ids=facts.eos_token_ids,
            num_host_slots=host.num_slots if host is not None else 0,
            swap_ms_per_slot=host.ms_per_slot if host is not None else 0.0,
        )
        engine = cls(spec, model, kv_caches, host, threads)
        if chosen.type == "cuda":
            for batch in warm_up_batches(spec):
                engine.execute(batch)
        logger.info("model loaded", extra={"model": name, "device": spec.device, "num_blocks": blocks})
        return engine

    def execute(self, batch: StepBatch) -> StepResult:
        """Run one step; see ``Engine.execute``."""
        if not batch.sequences:
            return StepResult({}, 0.0)
        self._claim_thread()
        # Decodes lead, longest first, so that the kernels can group those of like length.
        sequences = sorted(batch.sequences, key=lambda s: (len(s.token_ids) > 1, -s.num_computed_tokens))
        try:
            with torch.inference_mode(), self._slots_copied(batch.operations):
                started = time.perf_counter()
                sampled = self._run(sequences)
                latency_ms = (time.perf_counter() - started) * 1000.0
        except Exception as error:  # torch raises what it likes; the executor needs one kind
            raise EngineError(f"step {batch.step} failed: {type(error).__name__}: {error}") from error
        return StepResult(sampled, latency_ms)

    def close(self) -> None:
        """Free the model and the KV blocks; the engine cannot be used afterwards."""
        self._kv_caches.clear()
        self._host = None
        self._buffer = GatherBuffer()
        del self._model
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, sequences: list[Sequence]) -> dict[str, int]:
        """Returns the sampled token of each sequence that needs one."""
        metadata = AttentionMetadata.build(sequences, next(iter(self._kv_caches.values())))
        input_ids = np.array([token for sequence in sequences for token in sequence.token_ids])
        if input_ids.min() < 0 or input_ids.max() >= self.spec.vocab_size:
            raise EngineError(f"a token id is outside the vocabulary of {self.spec.vocab_size}")
        sampling = [i for i, sequence in enumerate(sequences) if sequence.needs_sample]
        logits = _logits(
            self._model,
            torch.from_numpy(input_ids).to(self._device)[None],
            metadata.position_ids[None],
            torch.from_numpy(metadata.last_rows[sampling]).to(self._device),
            PagedStep(self._kv_caches, metadata, self._buffer),
        )
        if not sampling:
            return {}
        chosen = [sequences[i] for i in sampling]
        rows = [SampleRow(s.sampling, s.num_computed_tokens + len(s.token_ids)) for s in chosen]
        return dict(zip([s.request_id for s in chosen], sample(logits, rows), strict=True))

    def _slots_copied(self, operations: SlotOperations) -> contextlib.AbstractContextManager[None]:
        """Around a step's forward pass."""
        if not operations:
            return contextlib.nullcontext()
        if self._host is None:
            raise EngineError("slots cannot be copied: the engine was loaded without host slots")
        return self._host.copied(operations)

    def _claim_thread(self) -> None:
        """OpenMP's thread count belongs to the calling thread, not to the process."""
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            torch.set_num_threads(self._num_threads)


def _logits(
    model: torch.nn.Module, input_ids: torch.Tensor, position_ids: torch.Tensor, rows: torch.Tensor, paged: object
) -> torch.Tensor:
    """[num_rows, vocab_size] of the given rows only: no other row needs the output layer."""
    output = model(input_ids=input_ids, position_ids=position_ids, use_cache=False, logits_to_keep=rows, paged=paged)
    logits: torch.Tensor = output.logits[0]
    return logits


def _load_model(path: Path, device: torch.device, dtype: str) -> tuple[torch.nn.Module, torch.dtype, KVShapes]:
    """On CPU with packed weights, unless the model turns out to read its layers' weights by itself."""
    model, model_dtype = _read_model(path, device, dtype)
    kv_shapes, expected = _probe(model, device)
    if device.type != "cpu" or not pack_linears(model):
        return model, model_dtype, kv_shapes
    tolerance = 1e-3 if model_dtype is torch.float32 else 5e-2
    with contextlib.suppress(ModelError):
        _, logits = _probe(model, device)
        if torch.allclose(logits, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())):
            return model, model_dtype, kv_shapes
    logger.warning("model runs without packed weights", extra={"path": str(path)})
    model, model_dtype = _read_model(path, device, dtype)
    return model, model_dtype, _probe(model, device)[0]


def _read_model(path: Path, device: torch.device, dtype: str) -> tuple[torch.nn.Module, torch.dtype]:
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(path)
        model_dtype = choose_dtype(dtype, device, config.dtype)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=model_dtype, attn_implementation=ATTENTION_NAME, low_cpu_mem_usage=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the model in {path}: {_first_line(error)}") from error
    if "logits_to_keep" not in inspect.signature(loaded.forward).parameters:
        raise ModelError(f"{type(loaded).__name__} is not a decoder that this engine can run")
    model: torch.nn.Module = loaded.to(device).eval().requires_grad_(False)
    return model, model_dtype


def _probe(model: torch.nn.Module, device: torch.device) -> tuple[KVShapes, torch.Tensor]:
    """The KV shapes and some logits, by running the model once on a few tokens. Raises ModelError."""
    probe = ShapeProbe()
    tokens = torch.arange(PROBE_TOKENS, device=device)
    try:
        logits = _logits(model, tokens[None], tokens[None], tokens, probe)
    except (EngineError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{type(model).__name__} cannot run on paged attention: {_first_line(error)}") from error
    layers = getattr(model.config, "num_hidden_layers", None)
    if len(probe.kv_shapes) != layers:
        raise ModelError(
            f"{type(model).__name__} has {layers} layers, of which {len(probe.kv_shapes)} use plain attention: "
            f"only dense decoders can be run"
        )
    return probe.kv_shapes, logits


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _allocate(
    kv_shapes: KVShapes, block_size: int, num_blocks: int | None, device: torch.device, dtype: torch.dtype
) -> KVCaches:
    slot_values = sum(heads * (k_dim + v_dim) for heads, k_dim, v_dim in kv_shapes.values())
    block_bytes = slot_values * block_size * dtype.itemsize
    blocks = kv_memory_bytes(device) // block_bytes if num_blocks is None else num_blocks
    if blocks < 1:
        raise ConfigError(f"no memory for one KV block of {block_bytes} bytes on {device}")
    try:
        return {
            layer: torch.zeros(blocks, block_size, heads, k_dim + v_dim, device=device, dtype=dtype)
            for layer, (heads, k_dim, v_dim) in kv_shapes.items()
        }
    except RuntimeError as error:
        raise ConfigError(f"no memory for {blocks} KV blocks of {block_bytes} bytes: ask for fewer") from error


def _host_pool(kv_caches: KVCaches, num_slots: int | None) -> HostPool | None:
    if num_slots == 0:
        return None
    layers = KVLayers.of(list(kv_caches.values()))
    slot_bytes = layers.slot_values * layers.caches[0].element_size()
    if num_slots is None:
        num_blocks, block_size = layers.caches[0].shape[:2]
        num_slots = min(num_blocks * block_size, max(1, host_memory_bytes() // slot_bytes))
    try:
        return HostPool(layers, num_slots)
    except RuntimeError as error:
        raise ConfigError(f"no memory for {num_slots} host slots of {slot_bytes} bytes: ask for fewer") from error


def _context(asked: int | None, of_model: int, of_blocks: int) -> int:
    if asked is not None and asked > of_model:
        raise ConfigError(f"a context of {asked} tokens is beyond the model's {of_model}")
    if asked is not None and asked > of_blocks:
        raise ConfigError(f"a context of {asked} tokens does not fit KV blocks for {of_blocks}: ask for more blocks")
    return asked or min(of_model, of_blocks)
