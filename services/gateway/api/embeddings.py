"""/v1/embeddings."""

from fastapi import APIRouter, Request, Response

from services.gateway.api.intake import answer, read_request
from services.gateway.http.operation import answers, json_of
from services.gateway.live.choices import Choices
from shared.openai.embeddings.answers import EmbeddingList, EmbeddingUsage, embeddings_body
from shared.openai.embeddings.requests import EMBEDDINGS, EmbeddingBody, parse_embedding

router = APIRouter()


@router.post(EMBEDDINGS, tags=["embeddings"], **answers(json_of(EmbeddingList), body=json_of(EmbeddingBody)))
async def create_embeddings(request: Request) -> Response:
    """Embed texts: the model's state behind the last token of each, of length 1."""
    asked = await read_request(request, parse_embedding)
    return await answer(request, asked, None, _embeddings)


def _embeddings(choices: Choices) -> EmbeddingList:
    request, usage = choices.first.request, choices.usage()
    packed = [each.embedding for each in choices.generations if each.embedding is not None]
    assert len(packed) == len(choices.generations), "one without its embedding has failed"
    assert request.sampling.embedding is not None
    told = EmbeddingUsage.of(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)
    return embeddings_body(packed, request.sampling.embedding, request.model, told)
