"""Finds out, by asking, in which form a server takes prompts and how it counts them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.records import NOT_NOW, RequestRecord
from loadgen.errors import ServerError
from loadgen.workload.prompts import Calibration, PromptMaker, text_prompts, token_id_prompts
from loadgen.workload.traces import TraceRequest

PROBE_UNITS = (16, 64)  # two lengths: their difference gives tokens per unit, the rest is the template's overhead
SPREAD_UNITS, SPREAD_PIECES = 1024, 16  # a longer one, of places all over the text: words differ in their tokens
NEAR_SHARE = 0.85  # of a context, that prompts of near lengths are cut to: some are a tenth longer
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Abilities:
    """How to ask this server. ``token_ids``: prompts go as ids, exact in length. ``exact_output``: it takes
    ``ignore_eos``, so that an answer has just the trace's length. ``batches``: it has OpenAI batches."""

    endpoint: str
    token_ids: bool
    exact_output: bool
    batches: bool

    @property
    def prompt_form(self) -> str:
        return "token ids" if self.token_ids else "text" if self.endpoint == COMPLETIONS else "chat"


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Bodies for one server and one model."""

    abilities: Abilities
    model: str
    prompts: PromptMaker[int] | PromptMaker[str]

    def fitting(self, max_context: int | None) -> int | None:
        """What lengths are to be cut to, so that prompts fit into the context."""
        is_near = max_context is not None and not self.abilities.token_ids
        return max(2, int(max_context * NEAR_SHARE)) if is_near and max_context else max_context

    def online(self, request: TraceRequest, index: int) -> StreamRequest:
        """The trace's request as a streamed one, greedy, of the trace's output length where the server allows."""
        return self.stream(self.prompts.prompt(request, index), request.num_output_tokens)

    def stream(self, prompt: list[int] | str, max_tokens: int) -> StreamRequest:
        return streamed(self.abilities.endpoint, self.body(prompt, max_tokens, self.abilities.exact_output))

    def body(self, prompt: list[int] | str, max_tokens: int, ignore_eos: bool) -> dict[str, Any]:
        """The JSON of a request, not streamed; ``prompt`` in the server's form."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0}
        if self.abilities.endpoint == CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return body | ({"ignore_eos": True} if ignore_eos else {})


def streamed(endpoint: str, body: dict[str, Any]) -> StreamRequest:
    """The body as a streamed request that reports its usage at the end."""
    streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
    return StreamRequest(endpoint, msgspec.json.encode(streaming))


async def probe(
    client: OpenAIClient,
    model: str,
    model_path: Path | None,
    filler: str | None,
    salt: str,
    max_context: int | None = None,
) -> RequestMaker:
    """The best form that the server takes, tried in this order: token ids and text to ``/v1/completions``, text to
    ``/v1/chat/completions``; each with and without ``ignore_eos``. Text is calibrated by the server's usage.
    ``max_context``: of the model, in tokens, where it is known. Raises ServerError with the server's own words when it
    takes none, or not now."""
    batches = await _has_batches(client)
    refused: list[str] = []
    for endpoint, token_ids in ((COMPLETIONS, True), (COMPLETIONS, False), (CHAT, False)):
        make_prompts = token_id_prompts if token_ids else text_prompts
        prompts = make_prompts(model_path, filler, salt)
        for exact_output in (True, False):
            maker = RequestMaker(Abilities(endpoint, token_ids, exact_output, batches), model, prompts)
            error = await _calibrate(client, maker)
            if error is None:
                if not token_ids:
                    await _calibrate_well(client, maker, max_context)
                return maker
            refused.append(f"{maker.abilities.prompt_form}: {error}")
    raise ServerError(f"{client.url} answers no completion request ({refused[-1]})")


async def _calibrate(client: OpenAIClient, maker: RequestMaker) -> str | None:
    """Send the probes; sets the calibration, or returns why this form does not do. Raises ServerError where the server
    does not say."""
    counted = []
    for num_units in PROBE_UNITS:
        record = await _asked(client, maker, maker.prompts.sample(num_units, f"probe:{num_units}"))
        if record.error is not None:
            return record.error
        counted.append(record.prompt_tokens)
    if maker.abilities.token_ids:
        wrong = any(count not in (None, units) for count, units in zip(counted, PROBE_UNITS, strict=True))
        return "prompt tokens are not counted as sent" if wrong else None
    short, long = counted
    if not short or not long or long <= short:
        return "the server's usage does not tell the prompt's tokens"
    tokens_per_unit = (long - short) / (PROBE_UNITS[1] - PROBE_UNITS[0])
    maker.prompts.calibration = Calibration(tokens_per_unit, max(0.0, short - tokens_per_unit * PROBE_UNITS[0]))
    return None


async def _calibrate_well(client: OpenAIClient, maker: RequestMaker, max_context: int | None) -> None:
    """By a prompt that has a good part of the text, where the server takes one so long. Raises ServerError where it
    does not say."""
    prompts, before, (first, _) = maker.prompts, maker.prompts.calibration, PROBE_UNITS
    most = SPREAD_UNITS if max_context is None else min(SPREAD_UNITS, before.num_units(max_context // 2))
    num_units = most - most % SPREAD_PIECES
    if num_units <= max(PROBE_UNITS):
        return
    record = await _asked(client, maker, prompts.spread(num_units, SPREAD_PIECES, "probe"))
    short = before.overhead + before.tokens_per_unit * first
    if record.error is None and (record.prompt_tokens or 0) > short:
        tokens_per_unit = ((record.prompt_tokens or 0) - short) / (num_units - first)
        prompts.calibration = Calibration(tokens_per_unit, max(0.0, short - tokens_per_unit * first))


async def _asked(client: OpenAIClient, maker: RequestMaker, prompt: list[int] | str) -> RequestRecord:
    """For one token. Raises ServerError where the server does not say whether it takes the prompt."""
    record = RequestRecord(time.perf_counter())
    await client.stream(maker.stream(prompt, 1), record)
    if record.not_taken or record.timed_out:
        raise ServerError(f"{client.url} takes no request now ({record.error})")
    return record


async def _has_batches(client: OpenAIClient) -> bool:
    """Raises ServerError where the server does not say."""
    try:
        answer = await client.get_json("/v1/batches?limit=1")
    except ServerError as error:
        if error.status is None or error.status in NOT_NOW:
            raise
        return False
    return isinstance(answer, dict) and isinstance(answer.get("data"), list)
