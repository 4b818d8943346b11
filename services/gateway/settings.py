"""What the gateway is told at start."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Slackwater's HTTP front: OpenAI's API for completions, files and batches."""

    model_path: Annotated[str, Meta(description="folder with the model's config.json and tokenizer")]
    model_name: Annotated[str, Meta(description="the model's name in the API", min_length=1)] = "smollm2-135m-instruct"
    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port to listen on", ge=1, le=65535)] = 8000
    gateway_id: Annotated[
        str, Meta(description="where executors send tokens; random where empty", pattern="^[A-Za-z0-9_-]*$")
    ] = ""

    def resolved_gateway_id(self) -> str:
        """The given id, or a new one: tokens of an earlier process never reach this one."""
        return self.gateway_id or secrets.token_hex(6)
