"""Whether clients of a gateway need an API key, and the one that its settings name."""

import ipaddress

from services.gateway.settings import GatewaySettings
from shared.errors import ConfigError
from shared.protocol.api_keys import ApiKeyRecord, hash_api_key, key_hint

MIN_KEY_LENGTH = 32  # of a key that an operator chose
FROM_ENVIRONMENT = "environment"


def are_keys_required(settings: GatewaySettings) -> bool:
    """As ``require_keys`` says; ``auto``: where others can connect."""
    if settings.require_keys == "auto":
        return not is_loopback(settings.host)
    return settings.require_keys == "always"


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
    return ApiKeyRecord(FROM_ENVIRONMENT, hash_api_key(key), key_hint(key), created_at=0)
