"""KV slots in host memory for our attention in vLLM: in this process, or in each of vLLM's workers a part of each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.v1.executor import Executor

from services.executor.engines.torch.host_pool import HostPool, HostSlots, host_pool_of
from services.executor.engines.torch.host_shards import ShardedHostSlots, serve_host_slots
from services.executor.engines.vllm.attention_step import directed_kv_caches
from services.executor.engines.vllm.worker_sockets import connect_to_workers, serve_in_folder
from shared.errors import ConfigError


def host_slots_of(workers: Executor, num_slots: int | None, num_workers: int) -> HostSlots | None:
    """See ``host_pool_of``: before the first step. Slots are those of our block ids, which leave out vLLM's null block.
    Raises ConfigError where there is no memory for them."""
    if num_slots == 0:
        return None
    if num_workers == 1:
        (kv_caches,) = workers.collective_rpc(directed_kv_caches)
        return _host_pool(kv_caches, num_slots, num_workers)
    connections = connect_to_workers(workers, _serve_host_slots, (num_slots, num_workers))
    if isinstance(connections, str):
        raise ConfigError(connections)
    return ShardedHostSlots(connections)


def _serve_host_slots(worker: Any, folder: str, num_slots: int | None, num_workers: int) -> Path | str:
    """Called in a worker's process by ``connect_to_workers``; where there is no memory for the slots, why."""
    try:
        pool = _host_pool(directed_kv_caches(worker), num_slots, num_workers)
    except ConfigError as error:
        return str(error)
    return serve_in_folder(folder, "host-slots", partial(serve_host_slots, pool))


@torch.inference_mode()
def _host_pool(kv_caches: list[torch.Tensor], num_slots: int | None, num_pools: int) -> HostPool:
    pool = host_pool_of(kv_caches, num_slots, num_pools)
    assert pool is not None, "slots are asked for"
    return pool
