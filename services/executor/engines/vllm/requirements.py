"""What this engine stands on in vLLM, none of which vLLM promises to keep: looked at when the engine is loaded, so that
another version is refused by name and not by a wrong token. What only a loaded model shows: ``vllm_workers``."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheLayout
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput, SamplerOutput
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.block_table import BlockTable, MultiGroupBlockTable
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import AttentionGroup

from services.executor.engines.vllm.attention import DirectedAttention, DirectedBackend
from services.executor.engines.vllm.attention_step import DirectedStepBuilder
from services.executor.engines.vllm.bare_weights import BareWeightsLoader
from services.executor.engines.vllm.environment import TESTED_VERSION, not_as_tested
from services.executor.engines.vllm.scheduler import PlannedScheduler
from shared.errors import ConfigError

logger = logging.getLogger(__name__)

# Names as one string each, told apart by spaces.
CALLS: tuple[tuple[Callable[..., Any], str], ...] = (
    (EngineCore.__init__, "self vllm_config executor_class log_stats"),
    (EngineCore.shutdown, "self"),
    (Executor.get_class, "vllm_config"),
    (Executor.collective_rpc, "self method args"),
    (Executor.execute_model, "self scheduler_output non_block"),
    (Executor.sample_tokens, "self grammar_output non_block"),
    (Executor.add_lora, "self lora_request"),
    (LoRARequest, "lora_name lora_int_id lora_path"),
    (Sampler.forward, "self logits sampling_metadata"),
    (SamplingParams, "temperature max_tokens ignore_eos extra_args"),
    (GPUModelRunner.execute_model, "self scheduler_output"),
    (GPUModelRunner.sample_tokens, "self grammar_output"),
    (GPUModelRunner._get_prompt_logprobs_dict, "self hidden_states num_scheduled_tokens"),
    (DefaultModelLoader.get_all_weights, "self model_config model"),
    (AttentionMetadataBuilder.build, "self common_prefix_len common_attn_metadata fast_build"),
    (AttentionImpl.forward, "self layer query key value kv_cache attn_metadata output"),
    (register_backend, "backend class_path"),
)
FIELDS: tuple[tuple[type, str], ...] = (
    (
        NewRequestData,
        "req_id prompt_token_ids mm_features sampling_params pooling_params block_ids num_computed_tokens lora_request",
    ),
    (
        CachedRequestData,
        "req_ids resumed_req_ids new_token_ids all_token_ids new_block_ids num_computed_tokens num_output_tokens",
    ),
    (
        SchedulerOutput,
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "scheduled_spec_decode_tokens scheduled_encoder_inputs finished_req_ids free_encoder_mm_hashes",
    ),
    (ModelRunnerOutput, "req_id_to_index sampled_token_ids logprobs prompt_logprobs_dict"),
    (SamplerOutput, "sampled_token_ids logprobs_tensors"),
    (KVCacheConfig, "num_blocks kv_cache_groups"),
    (KVCacheGroupSpec, "kv_cache_spec"),
    (CommonAttentionMetadata, "query_start_loc_cpu seq_lens_cpu_upper_bound"),
    (AttentionGroup, "layer_names metadata_builders"),
    (CachedRequestState, "sampling_params prompt_token_ids output_token_ids num_computed_tokens"),
)
NO_MORE_IS_REQUIRED = (NewRequestData, CachedRequestData, SchedulerOutput)  # these are made here
ATTRIBUTES: tuple[tuple[type, str], ...] = (
    (KVCacheConfig, "needs_kv_cache_zeroing"),
    (CachedRequestState, "num_tokens"),
    (InputBatch, "req_ids"),
    (MultiprocExecutor, "start_worker_monitor"),
    (BlockTable, "get_numpy_array"),
    (MultiGroupBlockTable, "__getitem__"),
    (LogprobsTensors, "logprob_token_ids logprobs selected_token_ranks tolists"),
    (LogprobsLists, "logprob_token_ids logprobs"),
    (AttentionBackendEnum, "CPU_ATTN CUSTOM clear_override"),
    (KVCacheLayout, "LBNHC"),
)
OURS: tuple[Any, ...] = (  # each by one base
    *(PlannedScheduler, DirectedBackend, DirectedStepBuilder, DirectedAttention),
    BareWeightsLoader,
)
ENGINE_ARGS = (
    "model skip_tokenizer_init dtype enforce_eager block_size max_model_len max_num_seqs max_num_batched_tokens "
    "num_gpu_blocks_override kv_cache_memory_bytes enable_prefix_caching enable_chunked_prefill "
    "disable_hybrid_kv_cache_manager tensor_parallel_size pipeline_parallel_size distributed_executor_backend "
    "async_scheduling attention_backend additional_config scheduler_cls use_tqdm_on_load generation_config "
    "runner load_format worker_extension_cls hf_overrides "
    "enable_lora max_loras max_cpu_loras max_lora_rank lora_target_modules"
)


def check_vllm(version: str) -> None:
    """Raises ConfigError that names every difference; another version without any is only warned of."""
    differences = list(differing())
    if differences:
        raise ConfigError(not_as_tested(version, "; ".join(differences)))
    if version != TESTED_VERSION:
        logger.warning("vLLM is not of the tested version", extra={"version": version, "tested": TESTED_VERSION})


def differing() -> Iterator[str]:
    """What is missing of all that is relied on, or asked for beyond it."""
    for function, parameters in CALLS:
        taken = inspect.signature(function).parameters
        yield from _beyond(f"{function.__qualname__} takes no", parameters.split(), taken)
    for owner, names in (*FIELDS, (EngineArgs, ENGINE_ARGS)):
        fields = {field.name: field for field in dataclasses.fields(owner)}
        yield from _beyond(f"{owner.__name__} has no", names.split(), fields)
        if owner in NO_MORE_IS_REQUIRED:
            required = [name for name, field in fields.items() if _is_required(field)]
            yield from _beyond(f"{owner.__name__} needs", required, names.split())
    for owner, names in ATTRIBUTES:
        there = [name for name in names.split() if hasattr(owner, name)]
        yield from _beyond(f"{owner.__name__} has no", names.split(), there)
    for ours in OURS:
        yield from _beyond(f"{ours.__bases__[0].__name__} asks for", sorted(ours.__abstractmethods__), ())


def _beyond(what: str, names: Iterable[str], there: Container[str]) -> Iterator[str]:
    missing = [name for name in names if name not in there]
    if missing:
        yield f"{what} {', '.join(missing)}"


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
