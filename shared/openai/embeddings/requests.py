"""Read the body of a request to /v1/embeddings: each input a prompt of which nothing but its last state is wanted."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.errors import TextTooLongError
from shared.openai.completions.prompts import prompt_schema, text_prompts
from shared.openai.completions.requests import CompletionRequest
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import DEFAULT, EMBEDDING_FIELDS, FLEX, AskedTier, read_fields
from shared.openai.served_model import ServedModel
from shared.protocol.sampling import EmbeddingShape, SamplingParams
from shared.text.tokenizer import Tokenizer

EMBEDDINGS = "/v1/embeddings"
MAX_INPUTS = 2048  # OpenAI's, of one request


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """Texts or token ids whose embeddings are wanted. Null is as absent."""

    model: str
    input: Annotated[Any, Meta(extra_json_schema=prompt_schema(MAX_INPUTS))]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    service_tier: AskedTier | None = None


_decoder = msgspec.json.Decoder(EmbeddingBody)


def parse_embedding(body: bytes, tokenizer: Tokenizer, model: ServedModel) -> CompletionRequest:
    """A request whose every input is a prompt without output. Raises RequestError."""
    fields = decode_body(body, _decoder)
    model = model.asked_as(fields.model)
    read_fields(body, fields.__struct_fields__, EMBEDDING_FIELDS)
    most = model.longest_prompt
    try:
        first, *others = prompts = text_prompts(fields.input, tokenizer, most, field="input", max_prompts=MAX_INPUTS)
    except TextTooLongError as error:
        raise model.too_long("input", most) from error
    _check_length(max(map(len, prompts)), model)
    _check_dimensions(fields.dimensions, model)
    return CompletionRequest(
        endpoint=EMBEDDINGS,
        model=model.name,
        prompt_token_ids=first,
        sampling=SamplingParams(
            max_tokens=0,
            temperature=0.0,
            ignore_eos=True,
            embedding=EmbeddingShape(fields.encoding_format == "base64", fields.dimensions),
            adapter=model.adapter,
        ),
        stream=False,
        include_usage=False,
        user=fields.user,
        service_tier=FLEX if fields.service_tier == FLEX else DEFAULT,
        other_prompts=others,
    )


def _check_length(num_tokens: int, model: ServedModel) -> None:
    """Executors take no prompt that leaves no room for a token."""
    most = min(model.max_model_len - 1, model.longest_prompt)
    if num_tokens > most:
        message = f"input has {num_tokens} tokens; this server takes at most {most}"
        raise RequestError(message, "input", "context_length_exceeded")


def _check_dimensions(dimensions: int | None, model: ServedModel) -> None:
    """As vLLM: only a model that was trained for it is cut short."""
    problem = None if dimensions is None else model.embedding_sizes.why_not(dimensions)
    if problem:
        raise RequestError(f"dimensions: {problem}", "dimensions", "unsupported_value")
