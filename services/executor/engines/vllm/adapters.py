"""LoRA adapters in vLLM: all of them are loaded with the model and stay, so that any may be in any step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vllm.config.lora import MaxLoRARanks
from vllm.lora.request import LoRARequest
from vllm.v1.executor import Executor

from services.executor.adapters import Adapter
from shared.errors import ModelError

ADAPTERS_KEY = "slackwater_adapters"  # in vLLM's additional_config: by their names, the folders that they are in


def lora_args(adapters: Sequence[Adapter], is_cpu: bool) -> dict[str, Any]:
    """Of EngineArgs; empty without adapters, which leaves the model's layers as they are."""
    if not adapters:
        return {}
    # On a CPU its kernels compute rows without an adapter with the last slot, where others have one: it stays empty.
    num_slots = len(adapters) + is_cpu
    return {
        "enable_lora": True,
        "max_loras": num_slots,
        "max_cpu_loras": num_slots,
        "max_lora_rank": held_rank(adapters),
        "lora_target_modules": sorted({module for each in adapters for module in each.modules}),
    }


def held_rank(adapters: Sequence[Adapter]) -> int:
    """What all of them have room in: vLLM knows some ranks only."""
    rank = max(each.rank for each in adapters)
    known: tuple[int, ...] = get_args(MaxLoRARanks)
    return min(each for each in known if each >= rank)


def lora_requests(folders: Mapping[str, str]) -> dict[str, LoRARequest]:
    """By name, as vLLM wants each named with a request: with a number of this engine's own. ``folders``: those of
    ADAPTERS_KEY."""
    return {name: LoRARequest(name, number, folder) for number, (name, folder) in enumerate(folders.items(), start=1)}


def load_adapters(workers: Executor, folders: Mapping[str, str]) -> None:
    """Into each of vLLM's workers. Raises ModelError."""
    for name, request in lora_requests(folders).items():
        try:
            workers.add_lora(request)
        except Exception as error:  # vLLM's own checks raise many kinds
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            raise ModelError(f"vLLM cannot run the adapter {name!r} in {request.lora_path}: {said}") from error
