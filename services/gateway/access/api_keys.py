"""The API keys that a gateway knows, as they are made and revoked, and the check of each request's own."""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.access.permissions import needed_permission
from services.gateway.access.rate_limits import RateLimits
from services.gateway.access.web_pages import WebPageCheck
from services.gateway.http.errors import error_response
from services.gateway.settings import GatewaySettings, are_keys_required, given_key, is_loopback, no_key
from services.gateway.tenants import Tenant
from shared.bus import Bus, Entry
from shared.clock import Clock
from shared.errors import ConfigError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord, Permission, hash_api_key, shown_time

logger = logging.getLogger(__name__)

OPEN_PATHS = (
    "/health",
    "/ping",
    "/ready",
    "/metrics",
)  # of whoever watches the process; nothing of a request is in them
INSUFFICIENT_PERMISSIONS = "insufficient_permissions"
DOCS = "/docs"  # the same for every gateway of this version
PAGE, PAGE_FILES = "/", "/dashboard/static/"  # the dashboard, which asks for a key itself


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a known key, or somebody without one, and what is left of its limits here."""

    key: ApiKeyRecord | None
    limits: RateLimits

    @property
    def tenant(self) -> Tenant:
        """What it sees, and whose that is which it makes."""
        return Tenant.of(self.key)


ANONYMOUS = Caller(None, RateLimits(None, None, 0.0))


class ApiKeys:
    """Follows the bucket, so that a revoked key is refused within moments; keys are here by their hashes only.
    While the bus is away, what was known last counts."""

    def __init__(self, bus: Bus, settings: GatewaySettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self.required = are_keys_required(settings)
        self._by_name: dict[str, Caller] = {}
        self._by_hash: dict[str, Caller] = {}
        self._entries: AsyncIterator[Entry[ApiKeyRecord] | None]

    async def start(self) -> None:
        """Know all present keys. Raises ConfigError where keys are required and there is none."""
        given = given_key(self._settings)
        self._entries = (await self._bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)).watch()
        while (entry := await anext(self._entries)) is not None:
            self._take(entry)
        if given is not None:
            await self._take_given(given)
        if self.required and not self._by_hash:
            raise ConfigError(no_key(self._settings))
        if not self.required and not is_loopback(self._settings.host):
            logger.warning("serving everyone who can connect", extra={"host": self._settings.host})

    async def run(self) -> None:
        """Follow changes; never returns."""
        async for entry in self._entries:
            if entry is not None:
                self._take(entry)

    def find(self, authorization: str | None) -> Caller | None:
        """Whose key an Authorization header holds; None for none, or one that nobody has."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            return None
        return self._by_hash.get(hash_api_key(key.strip()))

    def tenant(self, authorization: str | None) -> Tenant | None:
        """Who the header says that it is now; None where a key is required, and it is unknown or has ended."""
        caller = self.find(authorization) or ANONYMOUS
        has_ended = caller.key is None or caller.key.has_expired(self._clock.unix_s())
        return None if self.required and has_ended else caller.tenant

    async def _take_given(self, given: ApiKeyRecord) -> None:
        """The settings' key, unless the bucket has it, or had: asked after it was read, so that none is missed."""
        revoked = await self._bus.bucket(subjects.REVOKED_API_KEYS_BUCKET, ApiKeyRecord)
        try:
            known = (await revoked.get(given.key_hash)).value
        except NotFoundOnBusError:
            self._by_hash.setdefault(given.key_hash, self._caller(given))
        else:
            assert known is not None
            logger.warning("SLACKWATER_API_KEY is a revoked key and is refused", extra={"api_key": known.name})

    def _take(self, entry: Entry[ApiKeyRecord]) -> None:
        known = self._by_name.pop(entry.key, None)
        if known is not None:
            self._by_hash = {hash: each for hash, each in self._by_hash.items() if each is not known}
        if entry.value is not None:
            self._by_name[entry.key] = self._by_hash[entry.value.key_hash] = self._caller(entry.value)
        elif known is not None:
            logger.info("API key revoked", extra={"api_key": entry.key})

    def _caller(self, key: ApiKeyRecord) -> Caller:
        limits = RateLimits(key.requests_per_minute, key.tokens_per_minute, self._clock.monotonic_s())
        return Caller(key, limits)


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Around all routes, known or not: a request without a known key is refused where keys are required, and elsewhere
    where a web page that is not the gateway's own may have sent it; one with a key that has expired, or does not permit
    it, always. No permission would help where there is nothing: ``serves`` says whether there is."""

    app: ASGIApp
    keys: ApiKeys
    web_pages: WebPageCheck
    clock: Clock
    serves: Callable[[Scope], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            caller = self.keys.find(headers.get("authorization"))
            scope["state"]["caller"] = caller or ANONYMOUS
            if caller is not None and caller.key is not None:
                scope["state"]["key_name"] = caller.key.name
            path = scope["path"]
            is_open = path in (*OPEN_PATHS, PAGE, DOCS) or path.startswith(PAGE_FILES)
            refused = None if is_open else self._refusal(caller, headers, scope)
            if refused is not None:
                scope["state"]["refused"], answer = refused
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, caller: Caller | None, headers: Headers, scope: Scope) -> tuple[str, ASGIApp] | None:
        """The reason, for the metrics, and the answer; None where there is none."""
        if caller is not None and caller.key is not None:
            return self._refusal_of(caller.key, scope)
        if self.keys.required:
            return "key", _unknown(headers.get("authorization"))
        if found := self.web_pages.refusal(headers):
            reason, message = found
            return reason, error_response(403, message)
        return None

    def _refusal_of(self, key: ApiKeyRecord, scope: Scope) -> tuple[str, ASGIApp] | None:
        if key.has_expired(self.clock.unix_s()):
            assert key.expires_at is not None
            message = f"the API key {key.name!r} has expired at {shown_time(key.expires_at)}; ask for a new one"
            return "key_expired", _unauthorized(message, "token_expired")
        permission = needed_permission(scope["path"])
        if permission is None or key.permits(permission) or not self.serves(scope):
            return None
        return "permission", error_response(403, missing_permission(key, permission), code=INSUFFICIENT_PERMISSIONS)


def missing_permission(key: ApiKeyRecord, permission: Permission) -> str:
    """What a client is told, in OpenAI's words as far as they fit."""
    has = ", ".join(key.endpoints or ()) or "none"
    return (
        f"You have insufficient permissions for this operation. Missing scopes: {permission}. The API key "
        f"{key.name!r} has: {has}."
    )


def _unknown(authorization: str | None) -> ASGIApp:
    if authorization is None:
        return _unauthorized("no API key was given; send it as a header: Authorization: Bearer KEY", None)
    return _unauthorized("the API key is not known here", "invalid_api_key")


def _unauthorized(message: str, code: str | None) -> ASGIApp:
    return error_response(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})
