"""The API keys that a gateway knows, as they are made and revoked, and the check of each request's own."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.access.rate_limits import RateLimits
from services.gateway.access.web_pages import WebPageCheck
from services.gateway.http.errors import error_response
from services.gateway.settings import GatewaySettings, are_keys_required, given_key, is_loopback, no_key
from shared.bus import Bus, Entry
from shared.clock import Clock
from shared.errors import ConfigError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.api_keys import ApiKeyRecord, hash_api_key

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/ready", "/metrics")  # of whoever watches the process; nothing of a request is in them
PAGE, PAGE_FILES = "/", "/dashboard/static/"  # the dashboard, which asks for a key itself


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a known key, or somebody without one, and what is left of its limits here."""

    key: ApiKeyRecord | None
    limits: RateLimits


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
    where a web page that is not the gateway's own may have sent it."""

    app: ASGIApp
    keys: ApiKeys
    web_pages: WebPageCheck

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            authorization = headers.get("authorization")
            caller = self.keys.find(authorization)
            scope["state"]["caller"] = caller or ANONYMOUS
            path = scope["path"]
            is_open = path in (*OPEN_PATHS, PAGE) or path.startswith(PAGE_FILES)
            if caller is None and not is_open:
                if self.keys.required:
                    scope["state"]["refused"] = "key"
                    await _refusal(authorization)(scope, receive, send)
                    return
                if found := self.web_pages.refusal(headers):
                    scope["state"]["refused"], message = found
                    await error_response(403, message)(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def _refusal(authorization: str | None) -> ASGIApp:
    headers = {"WWW-Authenticate": "Bearer"}
    if authorization is None:
        message = "no API key was given; send it as a header: Authorization: Bearer KEY"
        return error_response(401, message, headers=headers)
    return error_response(401, "the API key is not known here", code="invalid_api_key", headers=headers)
