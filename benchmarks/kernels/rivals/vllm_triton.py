"""vLLM's attention in Triton, with the buffers for splits of decodes that its backend gives it."""

import torch
from vllm.triton_utils import triton
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

from benchmarks.kernels.rivals.paged import PagedStep
from benchmarks.kernels.work import Attention, Work

LEAST_PROGRAMS = 128  # with fewer, decodes are split
NUM_SPLITS = 16


def attention(work: Work) -> Attention:
    step = PagedStep.of(work)
    num_heads, head_dim = work.query.shape[1:]
    most_split = LEAST_PROGRAMS // step.keys.shape[2]
    parts = (most_split, num_heads, NUM_SPLITS)
    outs, largest, sums = (
        torch.empty(shape, dtype=torch.float32, device=work.query.device)
        for shape in ((*parts, triton.next_power_of_2(head_dim)), parts, parts)
    )

    def attended() -> torch.Tensor:
        out = torch.empty_like(work.query)
        unified_attention(
            q=work.query,
            k=step.keys,
            v=step.values,
            out=out,
            cu_seqlens_q=step.query_start_loc,
            max_seqlen_q=step.longest_query,
            seqused_k=step.seq_lens,
            max_seqlen_k=step.longest_sequence,
            softmax_scale=work.scale,
            causal=True,
            window_size=(-1, -1),
            block_table=step.block_tables,
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            seq_threshold_3D=most_split,
            num_par_softmax_segments=NUM_SPLITS,
            softmax_segm_output=outs,
            softmax_segm_max=largest,
            softmax_segm_expsum=sums,
        )
        return out

    return attended
