"""Who calls, and what that one may still ask for."""

from hashlib import blake2b

from fastapi import Request

from services.gateway.access.api_keys import Caller
from services.gateway.access.rate_limits import Reservation
from services.gateway.api.context import context_of
from services.gateway.http.answers import request_id_of
from services.gateway.live.generation import Sender
from shared.openai.completions.requests import CompletionRequest
from shared.protocol.api_keys import ApiKeyRecord


def caller_of(request: Request) -> Caller:
    """Whose key came with the request."""
    caller: Caller = request.state.caller
    return caller


def take_request(request: Request) -> None:
    """One more request of its caller. Raises Refusal where that is more than its limit."""
    caller_of(request).limits.take_request(context_of(request).clock.monotonic_s())


def reserve_tokens(request: Request, completion: CompletionRequest) -> Reservation:
    """Of its caller's limit, the prompt and the longest answers. Raises Refusal where so many are not left."""
    num_tokens = len(completion.prompt_token_ids) + completion.sampling.n * completion.sampling.max_tokens
    return caller_of(request).limits.reserve_tokens(num_tokens, context_of(request).clock.monotonic_s())


def sender_of(request: Request, user: str | None) -> Sender:
    """As executors know it; ``user`` is the body's field."""
    key = caller_of(request).key
    client_id = client_id_of(key, request.headers.get("authorization"), user)
    return Sender(client_id, 1.0 if key is None else key.weight, request_id_of(request))


def client_id_of(key: ApiKeyRecord | None, authorization: str | None, user: str | None) -> str:
    """The name of a known API key, else from the Authorization header, else from the body's ``user``, else empty. Only
    hashes of keys leave the gateway, and a user cannot name itself like the owner of a key."""
    if key is not None:
        return f"name-{key.name}"
    unknown_key = (authorization or "").removeprefix("Bearer").strip()
    if unknown_key:
        return _hashed("key", unknown_key)
    return _hashed("user", user) if user else ""


def _hashed(kind: str, name: str) -> str:
    return f"{kind}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
