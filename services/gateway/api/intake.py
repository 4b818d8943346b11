"""Who calls, and from an HTTP request to its generations and its answer: what endpoints share."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar, get_args

import msgspec
from fastapi import Request, Response

from services.gateway.access.admission import no_room_for_flex
from services.gateway.access.api_keys import Caller
from services.gateway.access.rate_limits import Reservation
from services.gateway.access.spending import Account
from services.gateway.api.context import context_of
from services.gateway.http.answers import request_id_of, span_of
from services.gateway.http.errors import CLIENT_CLOSED_REQUEST, SERVER_ERROR, error_response
from services.gateway.http.event_source import EventSource, unless_gone
from services.gateway.http.operation import JsonResponse
from services.gateway.live.choices import Choices
from services.gateway.live.generation import Sender
from services.gateway.live.tracker import Tracker
from services.gateway.models import GatewayModel
from services.gateway.settings import kv_owner
from services.gateway.tenants import Tenant
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.reasoning_chunks import ReasoningChunks
from shared.openai.completions.requests import CompletionRequest
from shared.openai.errors import RequestError
from shared.openai.fields import FLEX, AskedTier
from shared.openai.responses.events import ResponseEvents
from shared.openai.served_model import ServedModel
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KEY_CLIENT
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A longer prompt is tokenized in a thread, a grammar compiled, a longer answer written, so that streams do not wait.
INLINE_BODY_BYTES = 16 * 1024
INLINE_VALUES = 4 * 1024  # tokens and numbers
COMPILED = (b"json_schema", b"json_object", b"tool_choice", b"strict", b"structured_outputs", b"guided_")

StreamWriter = ChunkWriter | ReasoningChunks | ResponseEvents
Keep = Callable[[Choices], Awaitable[None]] | None
T = TypeVar("T")


async def read_request(
    request: Request, parse: Callable[..., T], prepare: Callable[[bytes], Awaitable[dict[str, Any]]] | None = None
) -> T:
    """As ``read_body``, of a request that is to run. Raises Refusal and what that raises."""
    take_request(request)
    context_of(request).models.check_online(sender_of(request, None).client_id)
    return await read_body(request, parse, prepare)


async def read_body(
    request: Request, parse: Callable[..., T], prepare: Callable[[bytes], Awaitable[dict[str, Any]]] | None = None
) -> T:
    """The body as ``parse(body, tokenizer, model)`` reads it, with further arguments that ``prepare`` has found. Raises
    what these raise, and Refusal for a body for which there is no room."""
    context = context_of(request)
    async with context.bodies.body(request, context.settings.max_body_bytes) as body:
        model = context.models.asked_in(body)
        served = served_for(request, model)
        found = {} if prepare is None else await prepare(body)
        parse = partial(parse, **found)
        if len(body) <= INLINE_BODY_BYTES and not found and not any(name in body for name in COMPILED):
            return parse(body, model.tokenizer, served)
        return await asyncio.to_thread(parse, body, model.tokenizer, served)


def _with_tier_of_url(request: Request, completion: CompletionRequest) -> CompletionRequest:
    """For clients that let their users choose the URL and not what is in the body. Raises RequestError."""
    tier = request.query_params.get("service_tier")
    if tier not in (None, *get_args(AskedTier)):
        raise RequestError(f"service_tier in the URL is {tier!r}; write flex, or leave it out", "service_tier")
    return msgspec.structs.replace(completion, service_tier=FLEX) if tier == FLEX else completion


def _with_owner(request: Request, completion: CompletionRequest) -> CompletionRequest:
    owner = kv_owner(context_of(request).settings, tenant_of(request).owner)
    if not owner:
        return completion
    sampling = msgspec.structs.replace(completion.sampling, kv_owner=owner)
    return msgspec.structs.replace(completion, sampling=sampling)


async def answer(
    request: Request,
    completion: CompletionRequest,
    writer: Callable[[Choices], StreamWriter] | None,
    body: Callable[[Choices], msgspec.Struct],
    keep: Keep = None,
) -> Response:
    """Run its choices, and show them with ``writer`` as their tokens arrive, or with ``body`` when all are whole, and
    ``keep`` has done what comes before that. They are closed at their end, whatever ends them. ``writer``: None where
    no such request is streamed. Raises RequestError, Refusal, NoExecutorError and BusError."""
    completion = _with_owner(request, _with_tier_of_url(request, completion))
    context, choices = context_of(request), await _start_choices(request, completion)
    headers = caller_of(request).limits.headers(context.clock.monotonic_s())
    if completion.stream:
        assert writer is not None
        events = _events(choices, await writer_of(choices, writer), context.models.of(completion.model).tokenizer, keep)
        return EventSource(events, aclosing(choices), headers, context.settings.stream_comment_s)
    async with aclosing(choices):
        if not await unless_gone(request.receive, choices.finished()):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    for generation in choices.generations:
        if generation.finish_reason is FinishReason.ERROR:
            return error_response(500, generation.error, SERVER_ERROR)
    if keep is not None:
        await keep(choices)
    return await written(choices, lambda: JsonResponse(body(choices), headers=headers))


async def writer_of(choices: Choices, writer: Callable[[Choices], StreamWriter]) -> StreamWriter:
    """Of an echo it has the prompts' texts. The choices are closed where there is none."""
    try:
        return await written(choices, partial(writer, choices))
    except BaseException:
        await choices.aclose()
        raise


async def written(choices: Choices, write: Callable[[], T]) -> T:
    """What is made of choices that have ended, or only of their prompts."""
    if sum(each.num_values for each in choices.generations) <= INLINE_VALUES:
        return write()
    return await asyncio.to_thread(write)


async def _start_choices(request: Request, completion: CompletionRequest) -> Choices:
    context = context_of(request)
    sender = sender_of(request, completion.user)
    model = context.models.of(completion.model)
    tracker: Tracker[Any] = model.tracker
    if completion.service_tier == FLEX:
        await model.admission.check_offline(no_room_for_flex)
        tracker = model.flex
    else:
        longest = max(map(len, completion.prompts))
        model.admission.check_online(sender.client_id, longest, completion.num_choices)
    return await Choices.submit(tracker, completion, sender, reserve_tokens(request, completion))


async def _events(
    choices: Choices, writer: StreamWriter, tokenizer: Tokenizer, keep: Keep
) -> AsyncGenerator[bytes, None]:
    """The answer has begun, so that an error is told as its last event."""
    try:
        async with aclosing(_shown(choices, writer, tokenizer, keep)) as events:
            async for event in events:
                yield event
    except Exception:
        logger.exception("a stream failed", extra=choices.first.log_ids)
        yield writer.fail("the server failed to process the request")


async def _shown(
    choices: Choices, writer: StreamWriter, tokenizer: Tokenizer, keep: Keep
) -> AsyncGenerator[bytes, None]:
    """What one choice has more to show at a time; an error of any choice ends all."""
    start = writer.start()  # with the first token, since clients take the first event for it
    async with aclosing(choices.pieces(tokenizer)) as pieces:
        async for piece in pieces:
            event, start = start, b""
            # Text that has to wait for the next token is told as empty: clients take an event for a token.
            if piece.text or piece.tokens or piece.finish_reason is None:
                event += writer.text(piece.text, piece.tokens, piece.index)
            if piece.finish_reason is FinishReason.ERROR:
                yield event + writer.fail(choices.generations[piece.index].error)
                return
            if piece.finish_reason is not None:
                event += writer.finish(piece.finish_reason, piece.index)
            if event:
                yield event
    if keep is not None:
        await keep(choices)
    yield writer.end(choices.usage())


def caller_of(request: Request) -> Caller:
    """Whose key came with the request."""
    caller: Caller = request.state.caller
    return caller


def tenant_of(request: Request) -> Tenant:
    """What its caller sees."""
    return caller_of(request).tenant


def served_for(request: Request, model: GatewayModel) -> ServedModel:
    """As its caller may use it now."""
    key = caller_of(request).key
    max_model_len = model.registry.max_model_len(model.served.max_model_len)
    permitted = None if key is None else key.models
    return msgspec.structs.replace(model.served, max_model_len=max_model_len, permitted=permitted)


def take_request(request: Request) -> None:
    """One more request of its caller. Raises Refusal where that is more than its limit."""
    caller_of(request).limits.take_request(context_of(request).clock.monotonic_s())


def reserve_tokens(request: Request, completion: CompletionRequest) -> Reservation:
    """Of its caller's limit, the prompt and the longest answers. Raises Refusal where so many are not left, or no
    budget is."""
    num_tokens = sum(map(len, completion.prompts)) + completion.num_choices * completion.sampling.max_tokens
    context = context_of(request)
    account = check_budget(request, context.models.of(completion.model), completion.sampling.adapter)
    return caller_of(request).limits.reserve_tokens(num_tokens, context.clock.monotonic_s(), account)


def check_budget(request: Request, model: GatewayModel, adapter: str) -> Account | None:
    """What its caller uses of the model, with an adapter or "", is charged to it; None without a key. Raises Refusal
    where its budget is used up."""
    context, key = context_of(request), caller_of(request).key
    if key is None:
        return None
    account = Account(key, adapter or model.name, context.gateway_id, context.usage, context.clock)
    account.check()
    return account


def sender_of(request: Request, user: str | None) -> Sender:
    """As executors know it; ``user`` is the body's field."""
    key = caller_of(request).key
    client_id = client_id_of(key, request.headers.get("authorization"), user)
    weight, name = (1.0, "") if key is None else (key.weight, key.name)
    return Sender(client_id, weight, request_id_of(request), name, span_of(request))


def client_id_of(key: ApiKeyRecord | None, authorization: str | None, user: str | None) -> str:
    """The name of a known API key, else from the Authorization header, else from the body's ``user``, else empty. Only
    hashes of keys leave the gateway, and a user cannot name itself like the owner of a key."""
    if key is not None:
        return f"{KEY_CLIENT}{key.name}"
    unknown_key = (authorization or "").removeprefix("Bearer").strip()
    if unknown_key:
        return _hashed("key", unknown_key)
    return _hashed("user", user) if user else ""


def _hashed(kind: str, name: str) -> str:
    return f"{kind}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
