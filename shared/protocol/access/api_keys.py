"""API keys: what clients send, and what is kept of it."""

import hashlib
import secrets
from datetime import UTC, datetime
from typing import Literal, get_args

import msgspec

from shared.bounds import KeyPart, Weight
from shared.protocol.access.owners import owner_of

PREFIX = "sk-slackwater-"
GIVEN_KEY = "environment"  # name of a gateway's own, from its settings
KEY_BYTES = 32  # of randomness
HINT_LENGTH = 4

# What a key may call; ``watch``: the stack's state; ``admin``: that, orders to executors, and what keys have used.
Permission = Literal["chat", "completions", "responses", "embeddings", "files", "batches", "watch", "admin"]
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)
USER_PERMISSIONS = tuple(each for each in PERMISSIONS if each != "admin")


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever has a key may do with it. A None limit is none."""

    weight: Weight = 1.0  # its share of service against that of others: batches always, online under the order vtc
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None  # of prompts and answers; days and months are those of UTC
    tokens_per_month: int | None = None
    organization: str | None = None  # whose things its own are, and that of others; None: its own alone
    max_stored_bytes: int | None = None  # quotas: of all files of its owner,
    max_open_batches: int | None = None  # of the owner's batches that have not ended,
    max_queued_tokens: int | None = None  # of prompts and longest answers of their requests without a result
    expires_at: int | None = None  # unix seconds; None: never
    models: list[str] | None = None  # the names that it may ask for; None: any
    endpoints: list[Permission] | None = None  # None: all

    def has_expired(self, unix_s: float) -> bool:
        """Whether it is too late for it."""
        return self.expires_at is not None and self.expires_at <= unix_s

    def permits_model(self, name: str) -> bool:
        """Whether requests may ask for it."""
        return self.models is None or name in self.models

    def permits(self, permission: Permission) -> bool:
        """Whether requests that need this permission may come."""
        if self.endpoints is None or permission in self.endpoints:
            return True
        return permission == "watch" and "admin" in self.endpoints


class ApiKeyRecord(KeyTerms, frozen=True):
    """A key in API_KEYS_BUCKET, under its name."""

    name: KeyPart
    key_hash: str  # see hash_api_key
    hint: str  # the end of the key, to tell keys apart
    created_at: int  # unix seconds

    @property
    def owner(self) -> str:
        """Of what is made with it."""
        return owner_of(self.name, self.organization)

    @property
    def named_owner(self) -> str:
        """That owner, as it is called before its users."""
        if self.organization is None:
            return f"the API key {self.name!r}"
        return f"the organization {self.organization!r}"


def new_api_key() -> str:
    """A random key; whoever is shown it is the only one who has it."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_api_key(key: str) -> str:
    """SHA-256, in hex.

    A key of 256 random bits cannot be guessed as passwords can: it needs no salt and no slow hash, which a gateway
    could not afford for each request. Nor does a lookup's time tell anything: nobody chooses a hash byte by byte."""
    return hashlib.sha256(key.encode()).hexdigest()


def shown_time(unix_s: int) -> str:
    """As 2026-11-30 12:00 UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def key_hint(key: str) -> str:
    """What may be shown of it."""
    return key[-HINT_LENGTH:]
