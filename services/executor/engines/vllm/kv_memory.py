"""Where vLLM's KV lies, for other executors that read it: in this process, or in each of vLLM's workers its part."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.v1.executor import Executor

from services.executor.engines.torch.kv_regions import regions_of
from services.executor.engines.vllm.runner_mirror import FIRST_BLOCK
from services.executor.engines.vllm.worker_sockets import connect_to_workers, serve_in_folder
from services.executor.handover.link import KVLink
from services.executor.handover.shard_calls import ShardStreams
from services.executor.handover.shard_server import serve_shard
from shared.protocol.executors import EngineSpec
from shared.protocol.handover import Place
from shared.replica.engine import KVRegions


def kv_regions_of(workers: Executor, spec: EngineSpec) -> KVRegions | str:
    """Of the one worker, which runs in this process."""
    (kv_caches,) = workers.collective_rpc(_kv_caches_of)
    return regions_of(kv_caches, spec.num_blocks, _layout(spec))


def kv_shards_of(workers: Executor, spec: EngineSpec) -> ShardStreams | str:
    """Of workers in processes of their own: before the first step, whose messages go the same way. Nothing is loaded
    there until the KV is asked for."""
    connections = connect_to_workers(workers, _serve_kv, (spec.num_blocks, _layout(spec)))
    return connections if isinstance(connections, str) else ShardStreams(connections)


def _layout(spec: EngineSpec) -> str:
    """What is to be the same on both sides: vLLM's kernels lay a block out as suits their device, whose name tells how
    many workers have parts of it, too."""
    return f"vllm {spec.model} {spec.device}"


def _serve_kv(worker: Any, folder: str, num_blocks: int, layout: str) -> Path | str:
    """Called in a worker's process by ``connect_to_workers``; where others cannot read its KV, why."""
    regions = regions_of(_kv_caches_of(worker), num_blocks, layout)
    if isinstance(regions, str):
        return regions

    def make_link(place: Place) -> KVLink:
        from services.executor.handover.nixl_link import NixlLink  # late: it is optional

        return NixlLink(place, regions)

    return serve_in_folder(folder, "kv-shard", partial(serve_shard, make_link))


def _kv_caches_of(worker: Any) -> list[torch.Tensor]:
    """Called by ``collective_rpc``: the KV cache of each layer that has one of its own, in the layers' order, without
    vLLM's null block: [num_blocks, ...]."""
    runner, kv_caches = worker.model_runner, dict[int, torch.Tensor]()
    for layer in runner.compilation_config.static_forward_context.values():
        kv_cache = layer.kv_cache
        kernel_blocks = (
            kv_cache.shape[0] // runner.kv_cache_config.num_blocks
        )  # of one block, for kernels of small ones
        kv_caches.setdefault(kv_cache.data_ptr(), kv_cache.unflatten(0, (-1, kernel_blocks))[FIRST_BLOCK:])
    return list(kv_caches.values())
