"""Settings of the offline-queue."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.openai.served_model import FROM_MODEL, GENERATION_CONFIGS
from shared.scheduling.strategy import Strategy
from shared.settings.lora_modules import LoraModules, parse_lora_modules
from shared.settings.other_models import OtherModels, parse_other_models
from shared.settings.setting import LIST, LogLevel, NatsCa, NatsCreds, NatsReplicas, NatsUrl, choices


class OfflineQueueSettings(msgspec.Struct, frozen=True):
    """The durable offline pool, the life of batches, and one ASYNC_SCHEDULER (HyGen Algorithm 2) per executor."""

    model_path: Annotated[str, Meta(description="folder of the prepared model")]
    nats: NatsUrl = "nats://127.0.0.1:4222"
    nats_creds: NatsCreds = ""
    nats_ca: NatsCa = ""
    nats_replicas: NatsReplicas = "auto"
    log_level: LogLevel = "info"
    model_name: Annotated[str, Meta(description="the model's name in the stack")] = "smollm2-135m-instruct"
    served_model_name: Annotated[
        str, Meta(description="what clients call the model; empty: as the stack does", extra=LIST)
    ] = ""
    generation_config: Annotated[
        str, Meta(description="where sampling has its defaults from", extra=choices(GENERATION_CONFIGS))
    ] = FROM_MODEL
    lora_modules: LoraModules = ""
    other_models: OtherModels = ""
    max_model_len: Annotated[int, Meta(ge=0, description="context limit in tokens; 0 is the model's own")] = 0
    block_size: Annotated[
        int, Meta(ge=0, description="tokens of a KV block of the executors, by which prompts are compared; 0 is 16")
    ] = 0
    pool_mb: Annotated[
        int, Meta(ge=1, description="memory in MiB for waiting requests; more wait in the stream until there is room")
    ] = 256
    max_failures: Annotated[
        int, Meta(ge=1, description="runs of one offline request that may fail until it is given up")
    ] = 5
    max_flex_requests: Annotated[
        int, Meta(ge=0, description="requests of the service tier flex under way at a time; more are refused")
    ] = 256
    keep_batches_days: Annotated[
        float, Meta(ge=0, description="for which a batch can be looked up after its end; 0 is for ever")
    ] = 30.0
    strategy: Strategy = Strategy()

    def __post_init__(self) -> None:
        parse_lora_modules(self.lora_modules)
        parse_other_models(self.other_models)
