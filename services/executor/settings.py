"""Settings of the executor."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES
from shared.scheduling.placement.role import Role
from shared.scheduling.step_sizes import StepSizes
from shared.scheduling.strategy import Strategy
from shared.settings.lora_modules import LoraModules, parse_lora_modules
from shared.settings.setting import LogLevel, NatsCa, NatsCreds, NatsReplicas, NatsUrl, TraceEndpoint, choices

DEFAULT_BLOCK_SIZE = 16  # tokens, but for vllm
ENGINES = ("torch", "vllm", "sim")
DEVICE = "^(auto|(cpu|cuda)(:[0-9]+)?)$"
DTYPES = ("auto", "float32", "bfloat16", "float16")
CUDA_GRAPHS = ("auto", "off")
OWN_ATTENTION = "slackwater"
VLLM_ATTENTIONS = ("auto", "vllm", OWN_ATTENTION)


class ExecutorSettings(msgspec.Struct, frozen=True):
    """One model replica: the engine, its KV cache and the step loop of HyGen's Algorithm 2 (SCHEDULER)."""

    model_path: Annotated[str, Meta(description="folder of the prepared model")]
    nats: NatsUrl = "nats://127.0.0.1:4222"
    nats_creds: NatsCreds = ""
    nats_ca: NatsCa = ""
    nats_replicas: NatsReplicas = "auto"
    log_level: LogLevel = "info"
    trace_endpoint: TraceEndpoint = ""
    executor_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$", description="unique among executors")] = "executor-0"
    model_name: Annotated[str, Meta(description="the name that clients use")] = "smollm2-135m-instruct"
    engine: Annotated[str, Meta(description="torch, vllm or sim", extra=choices(ENGINES))] = "torch"
    lora_modules: LoraModules = ""
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:1", pattern=DEVICE)] = "auto"
    dtype: Annotated[str, Meta(description="auto, float32, bfloat16 or float16", extra=choices(DTYPES))] = "auto"
    threads: Annotated[
        int, Meta(ge=0, description="CPU threads of the engine, at most one per core; 0 is one per core")
    ] = 0
    kv_blocks: Annotated[int, Meta(ge=0, description="KV blocks; 0 sizes them from memory")] = 0
    block_size: Annotated[int, Meta(ge=0, description="tokens of one KV block; 0 is 16, with vllm 32")] = 0
    vllm_attention: Annotated[
        str,
        Meta(
            description="whose attention the vllm engine has; auto: as kv_sharing needs it",
            extra=choices(VLLM_ATTENTIONS),
        ),
    ] = "auto"
    host_kv_slots: Annotated[int, Meta(ge=0, description="bidirectional: tokens of KV on the host; 0: by memory")] = 0
    max_model_len: Annotated[int, Meta(ge=0, description="context limit in tokens; 0 is the model's own")] = 0
    max_num_batched_tokens: Annotated[
        int,
        Meta(ge=0, description="tokens of one step: the chunk size; 0: as many as throughput asks, by measured steps"),
    ] = 0
    max_num_seqs: Annotated[int, Meta(ge=0, description="requests of one step; 0: likewise")] = 0
    role: Annotated[
        str,
        Meta(
            description="strict: for what online requests generate; relaxed: for prompts; mixed: for both",
            extra=choices(role.value for role in Role),
        ),
    ] = Role.MIXED.value
    drain_on_stop_s: Annotated[
        float,
        Meta(ge=0, description="in which its requests may end when it is told to stop; what is left goes on elsewhere"),
    ] = 0.0
    step_timeout_s: Annotated[
        float, Meta(gt=0, description="a step that takes longer, and 20 times its prediction, ends the executor")
    ] = 300.0
    cuda_graphs: Annotated[
        str,
        Meta(
            description="auto: the torch engine's steps on CUDA replay recorded graphs; or off",
            extra=choices(CUDA_GRAPHS),
        ),
    ] = "auto"
    cuda_graph_decodes: Annotated[int, Meta(ge=1, description="torch: decodes of the largest recorded step")] = 256
    cuda_graph_tokens: Annotated[
        int,
        Meta(ge=0, description="torch: tokens of the largest step with chunks that is recorded, in pieces; 0: none"),
    ] = 1024
    fused_attention: Annotated[
        bool, Meta(description="torch on CUDA: a step's prefill chunks and decodes share one launch of attention")
    ] = False
    tensor_parallel: Annotated[
        int, Meta(ge=1, description="GPUs, on a CPU processes, that share each layer; vllm and sim")
    ] = 1
    pipeline_depth: Annotated[
        int, Meta(ge=1, le=64, description="pipeline stages, each with a step in flight; vllm and sim")
    ] = 1
    sim_model: Annotated[
        str, Meta(description="sim engine: the model whose steps it times", extra=choices(ARCHITECTURES))
    ] = "llama2-7b"
    sim_device: Annotated[str, Meta(description="sim engine: the GPU that it stands for", extra=choices(DEVICES))] = (
        "a100-40g"
    )
    sim_time_scale: Annotated[float, Meta(gt=0, description="sim engine: 0.1 runs ten times as fast")] = 1.0
    sim_mean_output_tokens: Annotated[float, Meta(ge=1, description="sim engine: mean output length")] = 128.0
    strategy: Strategy = Strategy()

    def __post_init__(self) -> None:
        require_adapters_run(self.engine, self.lora_modules)

    @property
    def gives_sizes(self) -> bool:
        """Of a step, both."""
        return self.max_num_batched_tokens > 0 and self.max_num_seqs > 0

    def given_or(self, sizes: StepSizes) -> StepSizes:
        """Of a step."""
        return sizes.but(self.max_num_batched_tokens, self.max_num_seqs)


def require_adapters_run(engine: str, lora_modules: str) -> None:
    """Raises ValueError where the setting is none, or the engine runs no adapters."""
    if parse_lora_modules(lora_modules) and engine == "torch":
        raise ValueError("lora_modules: the torch engine runs no LoRA adapters; set engine to vllm, or leave them out")
