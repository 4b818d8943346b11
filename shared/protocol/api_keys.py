"""API keys: what clients send, and what is kept of it."""

import hashlib
import secrets

import msgspec

PREFIX = "sk-slackwater-"
KEY_BYTES = 32  # of randomness
HINT_LENGTH = 4


class ApiKeyRecord(msgspec.Struct, frozen=True):
    """A key in API_KEYS_BUCKET, under its name. A None limit is none."""

    name: str
    key_hash: str  # see hash_api_key
    hint: str  # the end of the key, to tell keys apart
    created_at: int  # unix seconds
    weight: float = 1.0  # its share of service against that of others: batches always, online under the order vtc
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


def new_api_key() -> str:
    """A random key; whoever is shown it is the only one who has it."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_api_key(key: str) -> str:
    """SHA-256, in hex.

    A key of 256 random bits cannot be guessed as passwords can: it needs no salt and no slow hash, which a gateway
    could not afford for each request. Nor does a lookup's time tell anything: nobody chooses a hash byte by byte."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_hint(key: str) -> str:
    """What may be shown of it."""
    return key[-HINT_LENGTH:]
