"""What the gateway is told at start."""

import ipaddress
from typing import Annotated

import msgspec
from msgspec import Meta

from loadgen.errors import SloError
from loadgen.report.slo import parse_slos
from shared.errors import ConfigError
from shared.openai.served_model import FROM_MODEL, GENERATION_CONFIGS
from shared.protocol.access.api_keys import GIVEN_KEY, ApiKeyRecord, hash_api_key, key_hint
from shared.settings.lora_modules import LoraModules, adapter_names
from shared.settings.other_models import OtherModel, OtherModels, parse_other_models, require_distinct
from shared.settings.setting import (
    LIST,
    SECRET,
    LogLevel,
    NatsCa,
    NatsCreds,
    NatsReplicas,
    NatsUrl,
    TraceEndpoint,
    choices,
)

ALL, OWNER = "all", "owner"  # of prefix_sharing
MIN_KEY_LENGTH = 32  # of a key that an operator chose


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Slackwater's HTTP front: OpenAI's API for completions, files and batches."""

    model_path: Annotated[str, Meta(description="folder with the model's config.json and tokenizer")]
    model_name: Annotated[str, Meta(description="the model's name in the stack", min_length=1)] = (
        "smollm2-135m-instruct"
    )
    served_model_name: Annotated[
        str,
        Meta(
            description="what clients call the model, by any of these names; the first is in answers; empty: as the "
            "stack does",
            extra=LIST,
        ),
    ] = ""
    generation_config: Annotated[
        str,
        Meta(
            description="where sampling has its defaults from: auto: the model's generation_config.json, none: nowhere",
            extra=choices(GENERATION_CONFIGS),
        ),
    ] = FROM_MODEL
    lora_modules: LoraModules = ""
    other_models: OtherModels = ""
    nats: NatsUrl = "nats://127.0.0.1:4222"
    nats_creds: NatsCreds = ""
    nats_ca: NatsCa = ""
    nats_replicas: NatsReplicas = "auto"
    log_level: LogLevel = "info"
    trace_endpoint: TraceEndpoint = ""
    trace_share: Annotated[
        float,
        Meta(description="of the requests that are traced; one with a traceparent is where that says so", ge=0, le=1),
    ] = 1.0
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port to listen on", ge=1, le=65535)] = 8000
    gateway_id: Annotated[
        str, Meta(description="what its id on the bus, each process's own, begins with", pattern="^[A-Za-z0-9_-]*$")
    ] = ""
    require_keys: Annotated[
        str,
        Meta(
            description="whether clients need an API key: always, never, or auto: where others can connect",
            extra=choices(("auto", "always", "never")),
        ),
    ] = "auto"
    api_key: Annotated[
        str, Meta(description="valid beside the keys of slackwater key; better kept in the environment", extra=SECRET)
    ] = ""
    prefix_sharing: Annotated[
        str,
        Meta(
            description="whose requests a prompt finds computed: all: everybody's, owner: those of its API key or "
            "organization alone, so that no time tells what others ask",
            extra=choices((ALL, OWNER)),
        ),
    ] = ALL
    allowed_hosts: Annotated[
        str,
        Meta(
            description="names by which it may be called without a key, beside localhost and host; *: any", extra=LIST
        ),
    ] = ""
    max_client_connections: Annotated[int, Meta(description="open at a time, by the client's address", ge=1)] = 8192
    max_header_bytes: Annotated[int, Meta(description="of a request's line and headers", ge=1024)] = 32 * 1024
    header_timeout_s: Annotated[float, Meta(description="in which they come", gt=0)] = 20.0
    keep_alive_s: Annotated[float, Meta(description="until a connection without requests is closed", gt=0)] = 10.0
    max_body_bytes: Annotated[int, Meta(description="of a completion's body; a larger one is refused", ge=1024)] = (
        16 * 1024**2
    )
    max_pending_body_bytes: Annotated[
        int, Meta(description="of all bodies being read or tokenized; beyond it large ones are refused", ge=1024)
    ] = 256 * 1024**2
    body_timeout_s: Annotated[float, Meta(description="in which a body comes, or more of an upload", gt=0)] = 60.0
    max_prompt_tokens: Annotated[
        int, Meta(description="of a completion's prompt; 0: what the model's context leaves room for", ge=0)
    ] = 0
    write_timeout_s: Annotated[
        float, Meta(description="a client that does not read for so long is cut off, its request aborted", gt=0)
    ] = 60.0
    stream_comment_s: Annotated[
        float,
        Meta(description="a stream that is silent for so long sends a comment, as proxies need it; 0: none", ge=0),
    ] = 15.0
    drain_s: Annotated[
        float,
        Meta(description="in which open answers may end when the gateway stops; the rest end with an error", ge=0),
    ] = 20.0
    max_live_requests: Annotated[int, Meta(description="online requests under way at a time", ge=1)] = 8192
    max_waiting_requests: Annotated[int, Meta(description="of them, those without a first token", ge=1)] = 2048
    max_waiting_tokens: Annotated[int, Meta(description="in the prompts of those", ge=1)] = 2_000_000
    max_wait_s: Annotated[float, Meta(description="the expected time to a first token", gt=0)] = 60.0
    slo: Annotated[
        str,
        Meta(description="SLOs to keep: a bound on ttft is one on the expected time to a first token too", extra=LIST),
    ] = ""
    max_offline_requests: Annotated[int, Meta(description="of batches, without a result yet", ge=1)] = 1_000_000
    max_offline_bytes: Annotated[int, Meta(description="of those, as they are stored", ge=1)] = 8 * 1024**3
    response_days: Annotated[
        float, Meta(description="so long a response is stored, unless its store is false; 0: none is", ge=0)
    ] = 30.0
    cors_origins: Annotated[
        str,
        Meta(
            description="whose web pages may call, as https://a.example,https://b.example, or *; empty: none's",
            extra=LIST,
        ),
    ] = ""

    def __post_init__(self) -> None:
        models = self.models()
        require_distinct([name for model in models for name in model.all_names])
        require_distinct([name for model in models for name in (model.name, *adapter_names(model.lora_modules))])
        try:
            for model in models:
                parse_slos(model.slo)
        except SloError as error:
            raise ValueError(str(error)) from error

    def models(self) -> tuple[OtherModel, ...]:
        """All of the stack, that of its own settings first. Raises ValueError."""
        own = self.model_name, self.model_path, self.served_model_name, self.generation_config, self.slo
        fields = zip(OtherModel.__struct_fields__, (*own, self.lora_modules), strict=True)
        first = msgspec.convert(dict(fields), OtherModel)
        return (first, *parse_other_models(self.other_models))


def ttft_bound_s(slo: str) -> float | None:
    """The tightest of these SLOs on TTFT that says it in seconds; None without one."""
    bounds_s = [each.limit / 1e3 for each in parse_slos(slo) if each.metric == "ttft_ms" and not each.relative]
    return min(bounds_s, default=None)


def kv_owner(settings: GatewaySettings, owner: str) -> str:
    """Whose requests alone find the KV of what this owner asks; empty: everybody's."""
    return owner if settings.prefix_sharing == OWNER else ""


def are_keys_required(settings: GatewaySettings) -> bool:
    """As ``require_keys`` says; ``auto``: where others can connect."""
    is_open_to_others = settings.require_keys == "auto" and not is_loopback(settings.host)
    return is_open_to_others or settings.require_keys == "always"


def no_key(settings: GatewaySettings) -> str:
    """What is wrong where keys are required and there is none, and what to do."""
    return (
        f"clients need an API key where the gateway listens on {settings.host!r}, and there is none: make one with "
        "slackwater key create NAME, or set SLACKWATER_API_KEY; to serve everyone who can connect, set "
        "SLACKWATER_REQUIRE_KEYS=never"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def given_key(settings: GatewaySettings) -> ApiKeyRecord | None:
    """That of ``api_key``, without the white space around it; None for none. Raises ConfigError for a short one."""
    key = settings.api_key.strip()
    if not key:
        return None
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigError(
            f"SLACKWATER_API_KEY has {len(key)} characters; give at least {MIN_KEY_LENGTH}, "
            "as from: openssl rand -hex 32"
        )
    return ApiKeyRecord(GIVEN_KEY, hash_api_key(key), key_hint(key), created_at=0)
