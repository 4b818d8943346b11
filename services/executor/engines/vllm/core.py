"""vLLM's engine core for one model: its configuration from our settings, and what of it can be run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from services.executor.adapters import Adapter
from services.executor.engines.torch.device import choose_dtype, kv_memory_bytes
from services.executor.engines.torch.threads import cpu_count
from services.executor.engines.vllm.adapters import ADAPTERS_KEY, held_rank, lora_args
from services.executor.engines.vllm.attention import DIRECTED_WORKER, backend_member, directed_attention
from services.executor.engines.vllm.bare_weights import bare_weights_args
from services.executor.engines.vllm.environment import changes_undone
from services.executor.engines.vllm.runner_mirror import ATTENTION_KEY, FIRST_BLOCK
from services.executor.engines.vllm.scheduler import PlannedScheduler
from services.executor.settings import OWN_ATTENTION
from shared.errors import ConfigError, ModelError
from shared.scheduling.step_sizes import largest_sizes
from shared.text.model_folder import ModelFacts

BLOCK_SIZE_MULTIPLES = {"cpu": 32, "cuda": 16}  # what its attention kernels take
# vLLM's ring to its workers holds 10 messages, two a step. The wait for room in it has no end where a worker is gone,
# which may leave one message of the last answered step unread, besides those of the steps in flight.
MAX_STAGES = 4
FULL_CONTEXT = -1  # the model's, or what the KV blocks hold if that is less


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """None: as in ``TorchEngine.load``; of a step's sizes, the largest that are ever chosen. ``attention``: "vllm", or
    "slackwater", which alone reads blocks filled from the right and has host slots."""

    num_threads: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    block_size: int = 32
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    attention: str = "vllm"
    num_host_slots: int | None = 0
    tensor_parallel: int = 1  # workers that share each layer
    pipeline_parallel: int = 1  # stages, one after another
    adapters: tuple[Adapter, ...] = ()

    @property
    def has_directions(self) -> bool:
        return self.attention == OWN_ATTENTION

    @property
    def num_workers(self) -> int:
        """One runs in this process, several in their own."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def variant(self) -> str:
        """As the end of a device in a profile key: what makes its steps take another time."""
        attention = "-own-attention" if self.has_directions else ""
        adapters = f"-lora{len(self.adapters)}x{held_rank(self.adapters)}" if self.adapters else ""
        tensor = f"-tp{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return attention + adapters + tensor + (f"-pp{self.pipeline_parallel}" if self.pipeline_parallel > 1 else "")


def make_core(path: Path, facts: ModelFacts, options: VllmOptions) -> EngineCore:
    """Raises ConfigError for settings that cannot be met, ModelError for a model that cannot be run."""
    device = _device(options)
    _check_sizes(options, facts, device)
    _check_degrees(path, options, device)
    attention = directed_attention() if options.has_directions else contextlib.nullcontext()
    with _named_errors(path), changes_undone(options.num_threads, options.num_workers), attention:
        config = _engine_args(path, options, device).create_engine_config()
        core = EngineCore(config, Executor.get_class(config), log_stats=False)
    with shut_down_on_error(core, path):
        problem = _why_not_planned(core.scheduler, options)
        if problem:
            raise ModelError(f"the vllm engine cannot run the model in {path}: {problem}")
        if options.num_workers > 1 and not hasattr(core.model_executor, "is_failed"):
            raise ConfigError(
                "vLLM's executor does not tell that a worker is gone: leave tensor_parallel and pipeline_depth at 1"
            )
    return core


@contextlib.contextmanager
def shut_down_on_error(core: EngineCore, path: Path) -> Iterator[None]:
    """Around what is done with a core before it is anyone's. Raises what ``make_core`` does."""
    try:
        with _named_errors(path):
            yield
    except BaseException:
        core.shutdown()
        raise


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ConfigError, ModelError):
        raise
    except Exception as error:  # vLLM's own checks raise many kinds, and its workers' failures the bare one
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        raise ModelError(f"vLLM cannot run the model in {path}: {said}") from error


def _engine_args(path: Path, options: VllmOptions, device: str) -> EngineArgs:
    is_cpu = device == "cpu"
    attention = backend_member().name if options.has_directions and not is_cpu else None  # a CPU has but one to name
    directed = {"worker_extension_cls": DIRECTED_WORKER} if options.has_directions and options.num_workers > 1 else {}
    largest = largest_sizes(device)
    max_num_seqs = options.max_num_seqs or largest.max_num_seqs
    dtype = choose_dtype(options.dtype, torch.device(device), None) if is_cpu or options.dtype != "auto" else "auto"
    return EngineArgs(
        model=str(path),
        runner="generate",  # whatever the folder says it is for: embeddings come of the same hidden states
        skip_tokenizer_init=True,
        generation_config="vllm",  # sampling is ours
        dtype=dtype,
        enforce_eager=is_cpu,  # there is nothing to capture, and compiling takes minutes
        block_size=options.block_size,
        max_model_len=options.max_model_len or FULL_CONTEXT,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(options.max_num_batched_tokens or largest.max_num_batched_tokens, max_num_seqs),
        num_gpu_blocks_override=None if options.num_blocks is None else options.num_blocks + FIRST_BLOCK,
        kv_cache_memory_bytes=kv_memory_bytes(torch.device(device)) // options.num_workers if is_cpu else None,
        enable_prefix_caching=False,  # the executor's pool finds prefixes
        enable_chunked_prefill=True,
        disable_hybrid_kv_cache_manager=True,  # layers with a window keep all their KV: one block table for all
        tensor_parallel_size=options.tensor_parallel,
        pipeline_parallel_size=options.pipeline_parallel,
        distributed_executor_backend="uni" if options.num_workers == 1 else "mp",
        async_scheduling=False,
        attention_backend=attention,
        additional_config={
            ATTENTION_KEY: options.attention,
            ADAPTERS_KEY: {each.name: str(each.folder) for each in options.adapters},
        },
        scheduler_cls=PlannedScheduler,
        use_tqdm_on_load=False,
        **(bare_weights_args(path) | directed),
        **lora_args(options.adapters, is_cpu),
    )


def _device(options: VllmOptions) -> str:
    """Which device vLLM runs on is decided by how it was built."""
    built_for: str = current_platform.device_type
    if built_for not in BLOCK_SIZE_MULTIPLES:
        raise ConfigError(f"the installed vLLM is built for {built_for}: the vllm engine runs on cpu or cuda")
    if options.device not in ("auto", built_for):
        raise ConfigError(f"device {options.device!r}: the installed vLLM runs on {built_for}; write auto")
    return built_for


def _check_sizes(options: VllmOptions, facts: ModelFacts, device: str) -> None:
    multiple, asked = BLOCK_SIZE_MULTIPLES[device], options.max_model_len
    if options.has_directions and options.block_size & (options.block_size - 1):
        raise ConfigError(f"block_size {options.block_size}: Slackwater's kernels take powers of two; leave it at 0")
    if options.block_size % multiple and not options.has_directions:
        raise ConfigError(
            f"block_size {options.block_size}: vLLM's kernels on {device} take multiples of {multiple}; leave it at 0"
        )
    if asked is not None and asked > facts.max_model_len:
        raise ConfigError(f"a context of {asked} tokens is beyond the model's {facts.max_model_len}")
    if asked is not None and options.num_blocks is not None and asked > options.num_blocks * options.block_size:
        raise ConfigError(
            f"a context of {asked} tokens does not fit {options.num_blocks} KV blocks: ask for more blocks"
        )


def _check_degrees(path: Path, options: VllmOptions, device: str) -> None:
    """Before processes are started for nothing."""
    if options.num_workers == 1:
        return
    num_devices, of_them = (torch.cuda.device_count(), "GPUs") if device == "cuda" else (cpu_count(), "cores")
    if options.num_workers > num_devices:
        raise ConfigError(
            f"tensor_parallel {options.tensor_parallel} times pipeline_depth {options.pipeline_parallel} asks for more "
            f"than the {num_devices} {of_them} here: lower one of them"
        )
    config, tensor = AutoConfig.from_pretrained(path).get_text_config(), options.tensor_parallel
    heads, layers = getattr(config, "num_attention_heads", tensor), getattr(config, "num_hidden_layers", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if heads % tensor or max(kv_heads, tensor) % min(kv_heads, tensor):
        raise ConfigError(
            f"tensor_parallel {tensor}: the model's {heads} heads and {kv_heads} KV heads cannot be shared equally; "
            "write a number that divides both"
        )
    if layers is not None and options.pipeline_parallel > layers:
        raise ConfigError(f"pipeline_depth {options.pipeline_parallel}: the model has {layers} layers; write less")
    if options.pipeline_parallel > MAX_STAGES:
        raise ConfigError(
            f"pipeline_depth {options.pipeline_parallel}: vLLM's ring of messages has room for {MAX_STAGES} steps in "
            f"flight; write {MAX_STAGES} or less"
        )


def _why_not_planned(scheduler: PlannedScheduler, options: VllmOptions) -> str:
    """Our pool hands out blocks of one kind and size that keep every token, those that have left a window too."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"it has {len(groups)} KV cache groups, where one block table is kept for a request"
    if not isinstance(groups[0].kv_cache_spec, FullAttentionSpec | SlidingWindowSpec):
        return f"its layers keep {type(groups[0].kv_cache_spec).__name__}, not the KV of every token"
    if scheduler.block_size != options.block_size:
        return f"vLLM keeps its KV in blocks of {scheduler.block_size} tokens, where {options.block_size} was asked for"
    return "its KV blocks must be zeroed before use" if scheduler.kv_cache_config.needs_kv_cache_zeroing else ""
