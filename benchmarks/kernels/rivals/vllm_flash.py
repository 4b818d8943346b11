"""FlashAttention as vLLM ships it: the third version where the GPU takes it, else the second."""

from functools import partial

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

from benchmarks.kernels.rivals.paged import PagedStep
from benchmarks.kernels.work import Attention, Work


def attention(work: Work) -> Attention:
    step = PagedStep.of(work)
    return partial(
        flash_attn_varlen_func,
        work.query,
        step.keys,
        step.values,
        max_seqlen_q=step.longest_query,
        cu_seqlens_q=step.query_start_loc,
        max_seqlen_k=step.longest_sequence,
        seqused_k=step.seq_lens,
        softmax_scale=work.scale,
        causal=True,
        block_table=step.block_tables,
        out=torch.empty_like(work.query),
        fa_version=3 if is_fa_version_supported(3) else 2,
    )
