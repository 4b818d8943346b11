"""Settings of the executor."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.scheduling.presets import OWN_KV_POLICY

ENGINES = ("torch", "sim")


class ExecutorSettings(msgspec.Struct, frozen=True):
    """One model replica: the engine, its KV cache and the step loop of HyGen's Algorithm 2 (SCHEDULER)."""

    model_path: Annotated[str, Meta(description="folder of the prepared model")]
    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    executor_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$", description="unique among executors")] = "executor-0"
    model_name: Annotated[str, Meta(description="the name that clients use")] = "smollm2-135m-instruct"
    engine: Annotated[str, Meta(description="torch or sim")] = "torch"
    device: Annotated[str, Meta(description="auto, cpu or cuda")] = "auto"
    dtype: Annotated[str, Meta(description="auto, float32, bfloat16 or float16")] = "auto"
    threads: Annotated[int, Meta(ge=0, description="CPU threads of the engine; 0 is one per core")] = 0
    kv_blocks: Annotated[int, Meta(ge=0, description="KV blocks; 0 sizes them from memory")] = 0
    block_size: Annotated[int, Meta(ge=1, description="tokens of one KV block")] = 16
    kv_policy: Annotated[str, Meta(description="lru, bidirectional, keep-resident, or preset: its own")] = OWN_KV_POLICY
    host_kv_slots: Annotated[int, Meta(ge=0, description="bidirectional: tokens of KV on the host; 0: by memory")] = 0
    max_model_len: Annotated[int, Meta(ge=0, description="context limit in tokens; 0 is the model's own")] = 0
    max_num_batched_tokens: Annotated[int, Meta(ge=1, description="tokens of one step: the chunk size")] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, description="requests of one step")] = 256
    preset: Annotated[str, Meta(description="hygen, sarathi++, hygen-star, online-only, bros, round-robin or fcfs")] = (
        "hygen"
    )
    ttft_slo_ms: Annotated[float, Meta(gt=0, description="bros: a first token is due so long after arrival")] = 400.0
    tpot_slo_ms: Annotated[float, Meta(gt=0, description="bros: a later one is due so long after the last")] = 200.0
    slo_group_tokens: Annotated[
        int, Meta(ge=1, description="bros: later tokens are due in groups of so many, after their times together")
    ] = 1
    online_order: Annotated[str, Meta(description="fcfs, or vtc: fair by client")] = "fcfs"
    vtc_weight_input: Annotated[float, Meta(ge=0, description="vtc: what a prompt token counts")] = 1.0
    vtc_weight_output: Annotated[float, Meta(ge=0, description="vtc: what an output token counts")] = 2.0
    pipeline_depth: Annotated[int, Meta(ge=1, le=64, description="steps in flight; over 1 with sim only")] = 1
    sim_model: Annotated[str, Meta(description="sim engine: the model whose steps it times")] = "llama2-7b"
    sim_device: Annotated[str, Meta(description="sim engine: the GPU that it stands for")] = "a100-40g"
    sim_tensor_parallel: Annotated[int, Meta(ge=1, description="sim engine: GPUs that share the model")] = 1
    sim_time_scale: Annotated[float, Meta(gt=0, description="sim engine: 0.1 runs ten times as fast")] = 1.0
    sim_mean_output_tokens: Annotated[float, Meta(ge=1, description="sim engine: mean output length")] = 128.0
