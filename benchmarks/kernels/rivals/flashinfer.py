"""FlashInfer's paged attention: its decode wrapper for decodes alone, its prefill wrapper for everything else. The plan
is made once, as an engine makes it once for all layers of a step."""

import flashinfer
import torch

from benchmarks.kernels.rivals.paged import PagedStep
from benchmarks.kernels.work import Attention, Work

WORKSPACE_BYTES = 256 << 20
PLAIN_GROUPS = (1, 2)  # query heads a KV head whose decodes are faster without tensor cores


def attention(work: Work) -> Attention:
    step = PagedStep.of(work)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=work.query.device)
    num_heads, head_dim = work.query.shape[1:]
    block_size, num_kv_heads = step.keys.shape[1:3]
    counts = -(-step.seq_lens // block_size)
    indptr = torch.cat((torch.zeros_like(counts[:1]), counts.cumsum(0))).int()
    indices = torch.cat([table[:count] for table, count in zip(step.block_tables, counts.tolist(), strict=True)])
    pages = (indptr, indices, step.seq_lens - (counts - 1) * block_size)
    shape = (num_heads, num_kv_heads, head_dim, block_size)
    options = {"sm_scale": work.scale, "q_data_type": work.query.dtype, "kv_data_type": work.query.dtype}
    if step.longest_query == 1:
        by_tensor_cores = num_heads // num_kv_heads not in PLAIN_GROUPS
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=by_tensor_cores)
        wrapper.plan(*pages, *shape, **options)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(step.query_start_loc, *pages, *shape, causal=True, **options)
    return lambda: wrapper.run(work.query, (step.keys, step.values))
