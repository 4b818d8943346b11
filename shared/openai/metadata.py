"""What clients attach to their requests: OpenAI's limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from shared.openai.errors import RequestError

MAX_PAIRS = 16
MAX_KEY_LENGTH = 64  # characters
MAX_VALUE_LENGTH = 512

_SCHEMA = {"maxProperties": MAX_PAIRS, "propertyNames": {"maxLength": MAX_KEY_LENGTH}}
_Value = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_VALUE_LENGTH})]
Metadata = Annotated[dict[str, _Value], Meta(extra_json_schema=_SCHEMA)]


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raises RequestError for more pairs, or longer ones, than OpenAI takes."""
    if not metadata:
        return
    if len(metadata) > MAX_PAIRS:
        raise RequestError(f"metadata has more than {MAX_PAIRS} pairs", "metadata")
    for key, value in metadata.items():
        if len(key) > MAX_KEY_LENGTH:
            raise RequestError(f"a metadata key is longer than {MAX_KEY_LENGTH} characters", "metadata")
        if len(value) > MAX_VALUE_LENGTH:
            raise RequestError(f"metadata.{key} is longer than {MAX_VALUE_LENGTH} characters", f"metadata.{key}")
